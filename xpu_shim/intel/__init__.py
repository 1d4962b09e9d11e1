"""What is known of the machine without loading torch: devices, masks, versions, environment policy."""
