/* The version of the library, which must match that of its caller. */

#include "library.h"

EXPORT int headrace_version(void) { return VERSION; }
