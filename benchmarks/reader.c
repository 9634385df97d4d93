/* Reader of replies: opens STREAMS connections, one every STEP seconds, with the request from standard input, and
 * records the arrival time of each text. With `repeat`, a connection sends the request again after each complete reply,
 * until UNTIL. Times are seconds of CLOCK_MONOTONIC. Prints its result as one line of JSON.
 *
 *     reader PORT STREAMS TEXTS START STEP FROM UNTIL LIMIT [repeat] < request
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
#define REASONS 3 /* distinct failure reasons that are reported */
#define FIRSTS 100000 /* times to the first text that are kept */
#define TEXT "\"content\":"
#define DONE "[DONE]"

enum part { HEAD, SIZE, DATA, DATA_END, LAST, WHOLE, RAW }; /* parser state */

struct stream {
    int fd;
    enum part part;
    int is_chunked, is_done, is_complete;
    size_t size;               /* bytes left in the current HTTP chunk */
    unsigned text, done;       /* length of the matched prefix of each pattern */
    double opened, last_text;   /* last_text: arrival of the last text */
    size_t have;
    char head[HEAD_BYTES];
};

static int streams, complete, complete_between, failed, reasons, is_repeating, in_flight;
static long texts_limit, texts, texts_between, bytes, gaps_count;
static double from_s, until_s;
static float *firsts, *gaps;
static int firsts_count;
static char reason_texts[REASONS][128];
static char request[REQUEST_BYTES];
static size_t request_size;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int send_request(struct stream *stream) {
    stream->part = HEAD;
    stream->is_chunked = stream->is_done = stream->is_complete = 0;
    stream->text = stream->done = 0;
    stream->have = 0;
    stream->last_text = 0;
    stream->opened = now();
    /* On loopback the request fits into the socket buffer. */
    return send(stream->fd, request, request_size, MSG_NOSIGNAL) == (ssize_t)request_size;
}

static void end(struct stream *stream, const char *failure) {
    if (failure == NULL) {
        double time = now();
        complete++;
        if (from_s <= time && time < until_s) complete_between++;
        if (is_repeating && time < until_s && stream->part != RAW) {
            if (send_request(stream)) return;
            failure = "no connection";
        }
    }
    close(stream->fd);
    stream->fd = -1;
    in_flight--;
    if (failure == NULL) return;
    failed++;
    for (int i = 0; i < reasons; i++) if (strcmp(reason_texts[i], failure) == 0) return;
    if (reasons == REASONS) return;
    char *out = reason_texts[reasons++];
    for (size_t i = 0; i < sizeof reason_texts[0] - 1 && failure[i] >= ' '; i++)
        out[i] = strchr("\"\\", failure[i]) || failure[i] > '~' ? '?' : failure[i];
}

static void note_text(struct stream *stream, double time) {
    if (stream->last_text == 0) {
        if (firsts_count < FIRSTS) firsts[firsts_count++] = time - stream->opened;
    } else if (gaps_count < streams * texts_limit) gaps[gaps_count++] = time - stream->last_text;
    stream->last_text = time;
    texts++;
    if (from_s <= time && time < until_s) texts_between++;
}

/* One byte of the body. A text is `"content":`, an optional space, and a non-empty string. */
static void scan_byte(struct stream *stream, char byte, double time) {
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

/* The head is complete: check the status and find the framing. NULL: continue. */
static const char *read_head(struct stream *stream) {
    stream->head[stream->have] = 0;
    if (strncmp(stream->head, "HTTP/1.1 200", 12) != 0) return stream->head;
    const char *length = strcasestr(stream->head, "\r\ncontent-length:");
    stream->part = strcasestr(stream->head, "transfer-encoding: chunked") ? SIZE : length ? WHOLE : RAW;
    stream->size = length ? strtoul(length + 17, NULL, 10) : 0;
    if (strcasestr(stream->head, "\r\ncontent-type: application/json")) stream->is_done = 1; /* no [DONE] */
    return NULL;
}

static const char *scan_head(struct stream *stream, char byte) {
    if (stream->have == HEAD_BYTES - 1) return "response head too long";
    stream->head[stream->have++] = byte;
    int is_over = stream->have >= 4 && memcmp(stream->head + stream->have - 4, "\r\n\r\n", 4) == 0;
    return is_over ? read_head(stream) : NULL;
}

static void scan_chunk_size(struct stream *stream, char byte) {
    if (byte == '\n') stream->part = stream->size ? DATA : LAST;
    else if (byte >= '0' && byte <= '9') stream->size = stream->size * 16 + byte - '0';
    else if ((byte | 32) >= 'a' && (byte | 32) <= 'f') stream->size = stream->size * 16 + (byte | 32) - 'a' + 10;
}

/* Returns a failure reason; NULL: continue. */
static const char *scan(struct stream *stream, const char *data, size_t size, double time) {
    for (size_t i = 0; i < size; i++) {
        const char *failure = NULL;
        switch (stream->part) {
        case HEAD: failure = scan_head(stream, data[i]); break;
        case SIZE: scan_chunk_size(stream, data[i]); break;
        case DATA:
            scan_byte(stream, data[i], time);
            if (--stream->size == 0) stream->part = DATA_END;
            break;
        case DATA_END: if (data[i] == '\n') stream->part = SIZE; break;
        case LAST: stream->is_complete = stream->is_complete || data[i] == '\n'; break;
        case WHOLE:
            scan_byte(stream, data[i], time);
            if (--stream->size == 0) stream->is_complete = 1;
            break;
        case RAW: scan_byte(stream, data[i], time); break;
        }
        if (failure != NULL) return failure;
    }
    return NULL;
}

static void read_stream(struct stream *stream) {
    static char data[READ_BYTES];
    ssize_t size = recv(stream->fd, data, sizeof data, 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) {
        int is_right = size == 0 && stream->part == RAW && stream->is_done;
        end(stream, is_right ? NULL : stream->part == HEAD ? "no reply" : "connection closed early");
        return;
    }
    bytes += size;
    const char *failure = scan(stream, data, size, now());
    if (failure != NULL) end(stream, failure);
    else if (stream->is_complete) end(stream, stream->is_done ? NULL : "ended without [DONE]");
}

static void begin(struct stream *stream, int poll, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = stream};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    in_flight++;
    stream->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (stream->fd < 0 || connect(stream->fd, (struct sockaddr *)&address, sizeof address) < 0 || !send_request(stream))
        end(stream, "no connection");
    else epoll_ctl(poll, EPOLL_CTL_ADD, stream->fd, &event);
}

static int by_size(const void *one, const void *other) {
    float a = *(const float *)one, b = *(const float *)other;
    return (a > b) - (a < b);
}

static double gap_quantile(double share) {
    return gaps_count ? gaps[(long)(share * (gaps_count - 1))] : 0;
}

static double cpu(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void print(void) {
    qsort(gaps, gaps_count, sizeof *gaps, by_size);
    printf("{\"complete\":%d,\"complete_between\":%d,\"failed\":%d,\"reasons\":[", complete, complete_between, failed);
    for (int i = 0; i < reasons; i++) printf("%s\"%s\"", i ? "," : "", reason_texts[i]);
    printf("],\"texts\":%ld,\"texts_between\":%ld,\"bytes\":%ld,\"first_s\":[", texts, texts_between, bytes);
    for (int i = 0; i < firsts_count; i++) printf("%s%.6f", i ? "," : "", firsts[i]);
    printf("],\"gap_p50_s\":%.6f,\"gap_p99_s\":%.6f,\"gap_max_s\":%.6f,\"cpu_s\":%.3f}\n", gap_quantile(.5),
           gap_quantile(.99), gap_quantile(1), cpu());
}

static void read_all(struct stream *all, int port, double start, double step, double limit) {
    struct epoll_event events[EVENTS];
    int poll = epoll_create1(0), opened = 0;
    while ((opened < streams || in_flight > 0) && now() < limit) {
        double next = opened < streams ? start + opened * step - now() : 0.1;
        if (opened < streams && next <= 0) { begin(&all[opened++], poll, port); continue; }
        struct timespec pause = {.tv_sec = (time_t)next, .tv_nsec = (long)((next - (time_t)next) * 1e9)};
        int ready = epoll_pwait2(poll, events, EVENTS, &pause, NULL);
        for (int i = 0; i < ready; i++) read_stream(events[i].data.ptr);
    }
    for (int i = 0; i < opened; i++) if (all[i].fd >= 0) end(&all[i], "not complete in time");
}

int main(int count, char **arguments) {
    if (count != 9 && count != 10) return 2;
    is_repeating = count == 10;
    streams = atoi(arguments[2]);
    texts_limit = atol(arguments[3]);
    from_s = atof(arguments[6]);
    until_s = atof(arguments[7]);
    struct stream *all = calloc(streams, sizeof *all);
    firsts = calloc(FIRSTS, sizeof *firsts);
    gaps = calloc(streams * texts_limit, sizeof *gaps);
    request_size = fread(request, 1, sizeof request, stdin);
    if (all == NULL || firsts == NULL || gaps == NULL || request_size == 0) return 2;
    read_all(all, atoi(arguments[1]), atof(arguments[4]), atof(arguments[5]), atof(arguments[8]));
    print();
    return 0;
}
