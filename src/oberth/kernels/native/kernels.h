/* The kernels: each takes its int64 arguments (numbers and addresses, see arguments.py) and returns
   an int64. None allocates, raises or touches a Python object, so each runs without the GIL. */
#ifndef OBERTH_KERNELS_H
#define OBERTH_KERNELS_H

#include <stdint.h>

#define KERNELS(each)  \
    each(crc)          \
    each(java_hash)    \
    each(find)         \
    each(scan)         \
    each(queues)       \
    each(unit_kinds)   \
    each(compare_units) \
    each(check_index)  \
    each(total_size)   \
    each(renumber)     \
    each(place_topics) \
    each(copy_records) \
    each(gather)       \
    each(property_maps) \
    each(hosts)        \
    each(message_ids)  \
    each(encode)       \
    each(index_keys)   \
    each(index_put)    \
    each(index_relink) \
    each(clean_batch)  \
    each(batch_records) \
    each(send_rows)    \
    each(send_records) \
    each(pull_rows)    \
    each(pull_answers)

#define DECLARE(name) int64_t kernel_##name(int64_t *args);
KERNELS(DECLARE)
#undef DECLARE

#endif
