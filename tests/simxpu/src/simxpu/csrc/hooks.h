#pragma once

namespace simxpu {

// True if torch had already cached its own hooks when this library was loaded.
bool hooks_replaced_stub();

} // namespace simxpu
