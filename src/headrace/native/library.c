/* Is it of one piece with its caller? */

#include "library.h"

EXPORT int headrace_version(void) { return VERSION; }
