/* Sends every packet of a TUN device back after a delay: slow_network DESCRIPTOR SECONDS.
 *
 * The addresses of each are exchanged (IPv4: bytes 12 to 16 and 16 to 20), which changes no
 * checksum of IP or TCP: each is a sum, and both are in it. A packet costs two copies, into a
 * buffer that was used before and out of it. Ends when standard input does. See slow_network.py.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 1 << 16, COUNT = 4096, AT_ONCE = 32 };

struct packet {
    long long due_ns;
    ssize_t length;
    unsigned char *data;
};

static struct packet ring[COUNT];
static unsigned char *unused[COUNT]; /* the one used last is taken first: it is in the cache */
static int unused_count;

static unsigned char *take_buffer(void) {
    return unused_count ? unused[--unused_count] : malloc(SIZE);
}

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    int device = atoi(argv[1]);
    long long delay_ns = (long long)(atof(argv[2]) * 1e9);
    unsigned long first = 0, end = 0; /* of the packets that are under way */
    for (;;) {
        struct pollfd wanted[2] = {{device, POLLIN, 0}, {0, POLLIN, 0}};
        if (end - first == COUNT)
            wanted[0].events = 0; /* the device keeps what comes */
        struct timespec wait, *limit = NULL;
        if (first != end) {
            long long left = ring[first % COUNT].due_ns - now_ns();
            if (left < 0)
                left = 0;
            wait.tv_sec = left / 1000000000LL;
            wait.tv_nsec = left % 1000000000LL;
            limit = &wait;
        }
        if (ppoll(wanted, 2, limit, NULL) < 0 && errno != EINTR)
            return 1;
        if (wanted[1].revents) {
            char byte;
            if (read(0, &byte, 1) <= 0)
                return 0;
        }
        if (wanted[0].revents & POLLIN) {
            long long due_ns = now_ns() + delay_ns;
            for (int n = 0; n < AT_ONCE && end - first < COUNT; n++) {
                struct packet *packet = &ring[end % COUNT];
                if (!(packet->data = take_buffer()))
                    return 1;
                packet->length = read(device, packet->data, SIZE);
                if (packet->length < 20 || packet->data[0] >> 4 != 4) {
                    unused[unused_count++] = packet->data;
                    if (packet->length < 0)
                        break;
                    continue; /* IPv6 talks to itself on every device */
                }
                unsigned char source[4];
                memcpy(source, packet->data + 12, 4);
                memcpy(packet->data + 12, packet->data + 16, 4);
                memcpy(packet->data + 16, source, 4);
                packet->due_ns = due_ns;
                end++;
            }
        }
        long long now = now_ns();
        for (; first != end && ring[first % COUNT].due_ns <= now; first++) {
            struct packet *packet = &ring[first % COUNT];
            if (write(device, packet->data, packet->length) < 0 && errno != EINTR)
                return 1;
            unused[unused_count++] = packet->data;
        }
    }
}
