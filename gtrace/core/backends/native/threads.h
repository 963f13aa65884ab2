// Threads that share the long lines of a native loop. A line has parts, which do not depend on the number of threads.
// Whoever is free takes the next part: a thread that other processes keep from running holds up no more than the part
// that it has, and where that happens, lines are not shared for some time.
//
// The threads are those of the OpenMP runtime that torch has loaded. Others would share the cores with its own, which
// wait for the next operation of torch without sleeping.

#include <pthread.h>
#include <stdint.h>
#include <time.h>

namespace {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class V> inline V get(const V& place, int order = __ATOMIC_SEQ_CST) { return __atomic_load_n(&place, order); }
template <class V> inline void put(V& place, V value, int order = __ATOMIC_SEQ_CST) {
  __atomic_store_n(&place, value, order);
}

// What a process has for the threads of its loops; null where its OpenMP runtime lacks these functions.
struct Runtime {
  void (*start)(void (*)(void*), void*, unsigned);
  void (*end)();
  int64_t* resumes;  // when lines are shared again, in nanoseconds

  explicit Runtime(void** python)
      : start(reinterpret_cast<void (*)(void (*)(void*), void*, unsigned)>(python[3])),
        end(reinterpret_cast<void (*)()>(python[4])), resumes(static_cast<int64_t*>(python[5])) {}
};

// The threads of one call of a loop: the calling one, and from the first long line on others.
class Team {
  typedef void (*Work)(const void*, int64_t);
  static constexpr int64_t SPINS = 2000;       // looks before a thread sleeps: some tens of microseconds
  static constexpr int64_t USUAL = 200000;     // nanoseconds to wait for threads that nothing keeps from running
  static constexpr int64_t RECOVERY = 16;      // lines are not shared for so many times as long as one was held up
  static constexpr uint64_t LINE = 1 << 16, LEFT = LINE - 1, ENDED = ~LEFT;

  const Runtime runtime;
  const int64_t threads;
  bool started = false;
  // the number of the line, and how many of its parts nobody has taken
  alignas(64) uint64_t state = 0;
  Work work = nullptr;
  const void* context = nullptr;
  int64_t parts = 0;
  alignas(64) int64_t done = 0;
  alignas(64) int64_t asleep = 0;
  int64_t waiting = 0;
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t begun = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;

  static int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
  }

  // the machine code of a part is the same for any number of threads, and so are its bits
  template <class F> __attribute__((noinline, noclone)) static void part_of(const void* f, int64_t part) {
    const F own = *static_cast<const F*>(f);
    own(part);
  }

  // Takes parts until there are none. What is read of a line belongs to it if its state has not changed meanwhile.
  void help() {
    uint64_t seen = get(state);
    while (seen & LEFT) {
      const Work own = get(work, __ATOMIC_RELAXED);
      const void* const with = get(context, __ATOMIC_RELAXED);
      const int64_t all = get(parts, __ATOMIC_RELAXED);
      if (!__atomic_compare_exchange_n(&state, &seen, seen - 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) continue;
      own(with, all - int64_t(seen & LEFT));
      if (__atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST) == all && get(waiting)) {
        pthread_mutex_lock(&lock);
        pthread_cond_signal(&finished);
        pthread_mutex_unlock(&lock);
      }
      seen = get(state);
    }
  }

  bool idle() const {
    const uint64_t seen = get(state);
    return !(seen & LEFT) && seen != ENDED;
  }

  static void live(void* of) {
    Team& team = *static_cast<Team*>(of);
    while (get(team.state) != ENDED) {
      team.help();
      int64_t k = 0;
      while (k < SPINS && team.idle()) ++k, relax();
      if (k < SPINS) continue;
      pthread_mutex_lock(&team.lock);
      __atomic_add_fetch(&team.asleep, 1, __ATOMIC_SEQ_CST);
      while (team.idle()) pthread_cond_wait(&team.begun, &team.lock);
      __atomic_sub_fetch(&team.asleep, 1, __ATOMIC_SEQ_CST);
      pthread_mutex_unlock(&team.lock);
    }
  }

  void wake() {
    if (!get(asleep)) return;
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&begun);
    pthread_mutex_unlock(&lock);
  }

  void recover(int64_t since) {
    const int64_t end = now();
    if (end > since + USUAL) put(*runtime.resumes, end + RECOVERY * (end - since), __ATOMIC_RELAXED);
  }

  bool shares() const {
    if (threads < 2 || runtime.start == nullptr) return false;
    const int64_t resumes = get(*runtime.resumes, __ATOMIC_RELAXED);
    return resumes == 0 || now() >= resumes;
  }

  // one function for all lines of a program, as part_of is one for each
  __attribute__((noinline, noclone)) void take(Work given, const void* with, int64_t count) {
    if (count > 1 && shares()) share(given, with, count);
    else for (int64_t k = 0; k < count; ++k) given(with, k);
  }

  void share(Work given, const void* with, int64_t count) {
    put(work, given, __ATOMIC_RELAXED);
    put(context, with, __ATOMIC_RELAXED);
    put(parts, count, __ATOMIC_RELAXED);
    put(done, int64_t(0));
    put(state, (get(state) & ~LEFT) + LINE + uint64_t(count));
    if (!started) runtime.start(live, this, unsigned(threads));
    started = true;
    wake();
    help();
    for (int64_t k = 0; k < SPINS && get(done) != count; ++k) relax();
    if (get(done) == count) return;
    const int64_t since = now();
    pthread_mutex_lock(&lock);
    put(waiting, int64_t(1));
    while (get(done) != count) pthread_cond_wait(&finished, &lock);
    put(waiting, int64_t(0));
    pthread_mutex_unlock(&lock);
    recover(since);
  }

 public:
  Team(int64_t threads, void** python) : runtime(python), threads(threads) {}

  // Runs f(0) to f(count - 1), which are independent of one another.
  template <class F> void run(int64_t count, const F& f) { take(part_of<F>, &f, count); }

  ~Team() {
    if (!started) return;
    const int64_t since = now();
    put(state, uint64_t(ENDED));
    wake();
    runtime.end();
    recover(since);
  }
};

}  // namespace
