// Exists so that the header is compiled.
#include "source_header.h"
