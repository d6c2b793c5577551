cdef bytes header_value(
    int envelope_format, const unsigned char *envelope, Py_ssize_t size, bytes name
)
