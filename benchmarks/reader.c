/* A client that only reads: it opens STREAMS streams, one each STEP seconds, with the request of its standard input,
 * and notes when each text comes. Moments are seconds of CLOCK_MONOTONIC. It prints what it heard as a line of JSON.
 *
 *     reader PORT STREAMS TEXTS START STEP FROM UNTIL LIMIT < request
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define REQUEST_BYTES 4096
#define HEAD_BYTES 8192
#define READ_BYTES 65536
#define EVENTS 256
#define REASONS 3 /* why streams failed, so many are told */
#define TEXT "\"content\":"
#define DONE "[DONE]"

enum part { HEAD, SIZE, DATA, DATA_END, LAST, RAW }; /* where in the reply we are */

struct stream {
    int fd;
    enum part part;
    int is_chunked, is_done, is_whole;
    size_t size;               /* of the piece of chunked encoding that is read */
    unsigned text, done;       /* how much of the patterns has been seen */
    double opened, heard_at;   /* heard_at: the last text */
    size_t have;
    char head[HEAD_BYTES];
};

static int streams, whole, failed, reasons;
static long texts_limit, texts, texts_between, bytes, gaps_count;
static double from_s, until_s;
static float *firsts, *gaps;
static int firsts_count;
static char why[REASONS][128];
static char request[REQUEST_BYTES];
static size_t request_size;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void end(struct stream *stream, const char *trouble) {
    close(stream->fd);
    stream->fd = -1;
    if (trouble == NULL) { whole++; return; }
    failed++;
    for (int i = 0; i < reasons; i++) if (strcmp(why[i], trouble) == 0) return;
    if (reasons == REASONS) return;
    char *out = why[reasons++];
    for (size_t i = 0; i < sizeof why[0] - 1 && trouble[i] >= ' '; i++)
        out[i] = strchr("\"\\", trouble[i]) || trouble[i] > '~' ? '?' : trouble[i];
}

static void note_text(struct stream *stream, double time) {
    if (stream->heard_at == 0) firsts[firsts_count++] = time - stream->opened;
    else if (gaps_count < streams * texts_limit) gaps[gaps_count++] = time - stream->heard_at;
    stream->heard_at = time;
    texts++;
    if (from_s <= time && time < until_s) texts_between++;
}

/* A byte of the body. A text is `"content":`, perhaps a space, and a string that is not empty. */
static void hear_byte(struct stream *stream, char byte, double time) {
    const unsigned key = sizeof TEXT - 1;
    if (stream->text == key + 1) {
        if (byte != '"') note_text(stream, time);
        stream->text = 0;
    } else if (stream->text == key) {
        if (byte != ' ') stream->text = byte == '"' ? key + 1 : 0;
    } else {
        stream->text = byte == TEXT[stream->text] ? stream->text + 1 : byte == '"';
    }
    stream->done = byte == DONE[stream->done] ? stream->done + 1 : byte == '[';
    if (stream->done == sizeof DONE - 1) { stream->is_done = 1; stream->done = 0; }
}

/* The head is over: is it a stream, and how is it framed? NULL: go on. */
static const char *read_head(struct stream *stream) {
    stream->head[stream->have] = 0;
    if (strncmp(stream->head, "HTTP/1.1 200", 12) != 0) return stream->head;
    stream->part = strcasestr(stream->head, "transfer-encoding: chunked") ? SIZE : RAW;
    stream->size = 0;
    return NULL;
}

static const char *hear_head(struct stream *stream, char byte) {
    if (stream->have == HEAD_BYTES - 1) return "a head without an end";
    stream->head[stream->have++] = byte;
    int is_over = stream->have >= 4 && memcmp(stream->head + stream->have - 4, "\r\n\r\n", 4) == 0;
    return is_over ? read_head(stream) : NULL;
}

static void hear_size(struct stream *stream, char byte) {
    if (byte == '\n') stream->part = stream->size ? DATA : LAST;
    else if (byte >= '0' && byte <= '9') stream->size = stream->size * 16 + byte - '0';
    else if ((byte | 32) >= 'a' && (byte | 32) <= 'f') stream->size = stream->size * 16 + (byte | 32) - 'a' + 10;
}

/* NULL: go on. */
static const char *hear(struct stream *stream, const char *data, size_t size, double time) {
    for (size_t i = 0; i < size; i++) {
        const char *trouble = NULL;
        switch (stream->part) {
        case HEAD: trouble = hear_head(stream, data[i]); break;
        case SIZE: hear_size(stream, data[i]); break;
        case DATA:
            hear_byte(stream, data[i], time);
            if (--stream->size == 0) stream->part = DATA_END;
            break;
        case DATA_END: if (data[i] == '\n') stream->part = SIZE; break;
        case LAST: stream->is_whole = stream->is_whole || data[i] == '\n'; break;
        case RAW: hear_byte(stream, data[i], time); break;
        }
        if (trouble != NULL) return trouble;
    }
    return NULL;
}

static void read_some(struct stream *stream) {
    static char data[READ_BYTES];
    ssize_t size = recv(stream->fd, data, sizeof data, 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) {
        int is_right = size == 0 && stream->part == RAW && stream->is_done;
        end(stream, is_right ? NULL : stream->part == HEAD ? "no reply" : "cut off");
        return;
    }
    bytes += size;
    const char *trouble = hear(stream, data, size, now());
    if (trouble != NULL) end(stream, trouble);
    else if (stream->is_whole) end(stream, stream->is_done ? NULL : "ended without [DONE]");
}

static void begin(struct stream *stream, int poll, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = stream};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    stream->opened = now();
    stream->fd = socket(AF_INET, SOCK_STREAM, 0);
    /* On loopback a connection is made at once, and a request fits into the buffer. */
    if (stream->fd < 0 || connect(stream->fd, (struct sockaddr *)&address, sizeof address) < 0 ||
        send(stream->fd, request, request_size, MSG_NOSIGNAL) != (ssize_t)request_size)
        end(stream, "no connection");
    else epoll_ctl(poll, EPOLL_CTL_ADD, stream->fd, &event);
}

static int by_size(const void *one, const void *other) {
    float a = *(const float *)one, b = *(const float *)other;
    return (a > b) - (a < b);
}

static double gap_at(double share) {
    return gaps_count ? gaps[(long)(share * (gaps_count - 1))] : 0;
}

static double cpu(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void print(void) {
    qsort(gaps, gaps_count, sizeof *gaps, by_size);
    printf("{\"whole\":%d,\"failed\":%d,\"why\":[", whole, failed);
    for (int i = 0; i < reasons; i++) printf("%s\"%s\"", i ? "," : "", why[i]);
    printf("],\"texts\":%ld,\"texts_between\":%ld,\"bytes\":%ld,\"first_s\":[", texts, texts_between, bytes);
    for (int i = 0; i < firsts_count; i++) printf("%s%.6f", i ? "," : "", firsts[i]);
    printf("],\"gap_p50_s\":%.6f,\"gap_p99_s\":%.6f,\"gap_max_s\":%.6f,\"cpu_s\":%.3f}\n", gap_at(.5), gap_at(.99),
           gap_at(1), cpu());
}

static void read_all(struct stream *all, int port, double start, double step, double limit) {
    struct epoll_event events[EVENTS];
    int poll = epoll_create1(0), opened = 0;
    while (whole + failed < streams && now() < limit) {
        double next = opened < streams ? start + opened * step - now() : 0.1;
        if (opened < streams && next <= 0) { begin(&all[opened++], poll, port); continue; }
        struct timespec pause = {.tv_sec = (time_t)next, .tv_nsec = (long)((next - (time_t)next) * 1e9)};
        int ready = epoll_pwait2(poll, events, EVENTS, &pause, NULL);
        for (int i = 0; i < ready; i++) read_some(events[i].data.ptr);
    }
    for (int i = 0; i < opened; i++) if (all[i].fd >= 0) end(&all[i], "not whole in time");
}

int main(int count, char **arguments) {
    if (count != 9) return 2;
    streams = atoi(arguments[2]);
    texts_limit = atol(arguments[3]);
    from_s = atof(arguments[6]);
    until_s = atof(arguments[7]);
    struct stream *all = calloc(streams, sizeof *all);
    firsts = calloc(streams, sizeof *firsts);
    gaps = calloc(streams * texts_limit, sizeof *gaps);
    request_size = fread(request, 1, sizeof request, stdin);
    if (all == NULL || firsts == NULL || gaps == NULL || request_size == 0) return 2;
    read_all(all, atoi(arguments[1]), atof(arguments[4]), atof(arguments[5]), atof(arguments[8]));
    print();
    return 0;
}
