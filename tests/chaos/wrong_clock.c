/* A wall clock that is wrong by as many nanoseconds as the file named by HEADRACE_WRONG_CLOCK says.
 *
 * Loaded by LD_PRELOAD. The monotonic clock is left alone. Waits until a moment of the wall clock are corrected, since
 * the kernel counts by the right one; monotonic times are distinguished from these by their size.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define WALL_SECONDS_MIN 1000000000LL

static const volatile int64_t *offset_ns;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_cond_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_sem_timedwait)(sem_t *, const struct timespec *);
static int (*real_mutex_timedlock)(pthread_mutex_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
  real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
#ifdef __x86_64__
  real_cond_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"); /* not the older one */
#else
  real_cond_timedwait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
#endif
  real_sem_timedwait = dlsym(RTLD_NEXT, "sem_timedwait");
  real_mutex_timedlock = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
  const char *path = getenv("HEADRACE_WRONG_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0)
    return;
  void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (mapped != MAP_FAILED)
    offset_ns = mapped;
  close(file);
}

static struct timespec moved(struct timespec at, int64_t by) {
  int64_t ns = at.tv_nsec + by % SECOND;
  at.tv_sec += by / SECOND;
  if (ns < 0) {
    ns += SECOND;
    at.tv_sec--;
  } else if (ns >= SECOND) {
    ns -= SECOND;
    at.tv_sec++;
  }
  at.tv_nsec = ns;
  return at;
}

static int64_t offset(void) { return offset_ns ? *offset_ns : 0; }

static struct timespec real_moment(const struct timespec *at) {
  return at->tv_sec >= WALL_SECONDS_MIN ? moved(*at, -offset()) : *at;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  if (!real_clock_gettime)
    begin();
  int failed = real_clock_gettime(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    *now = moved(*now, offset());
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec precise;
  (void)zone;
  int failed = clock_gettime(CLOCK_REALTIME, &precise);
  if (!failed && now) {
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
  }
  return failed;
}

time_t time(time_t *result) {
  struct timespec precise;
  if (clock_gettime(CLOCK_REALTIME, &precise))
    return (time_t)-1;
  if (result)
    *result = precise.tv_sec;
  return precise.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
  return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
  struct timespec real = real_moment(until);
  return real_cond_timedwait(condition, mutex, &real);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
  struct timespec real = real_moment(until);
  return real_sem_timedwait(semaphore, &real);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
  struct timespec real = real_moment(until);
  return real_mutex_timedlock(mutex, &real);
}
