// Exists so that the header is compiled.
#include "test_header.h"
