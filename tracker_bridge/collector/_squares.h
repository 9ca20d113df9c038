/* The sum of the squares of float32 numbers in float64, where none of them over- or underflows: (1.4e-45)^2 = 2e-90
 * and 2^60 times (3.4e38)^2 = 1e95. Sums run beside each other, so that the compiler uses the whole width of the processor,
 * and memory is asked for ahead of time: it is what one waits for. */
#ifndef TRACKER_BRIDGE_SQUARES_H
#define TRACKER_BRIDGE_SQUARES_H

#include <stddef.h>
#include <stdlib.h> /* defines __GLIBC__ */

#define BESIDE 32
#define AHEAD 512 /* elements, 2 KiB */

#if defined(__GNUC__)
#define FETCH(place) __builtin_prefetch(place)
#else
#define FETCH(place)
#endif

#if defined(__x86_64__) && defined(__GNUC__) && defined(__GLIBC__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static double
sum_of_squares(const float *numbers, ptrdiff_t count) {
    double sums[BESIDE] = {0.0};
    double total = 0.0;
    ptrdiff_t i = 0;
    for (; i + BESIDE <= count; i += BESIDE) {
        FETCH(numbers + i + AHEAD);
        FETCH(numbers + i + AHEAD + BESIDE / 2);
        for (int k = 0; k < BESIDE; k++) {
            double number = numbers[i + k];
            sums[k] += number * number;
        }
    }
    for (; i < count; i++) {
        double number = numbers[i];
        total += number * number;
    }
    for (int k = 0; k < BESIDE; k++) total += sums[k];
    return total;
}

#endif
