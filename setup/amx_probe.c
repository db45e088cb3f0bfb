// Exits 0 if AMX tiles work here. Some virtual machines advertise AMX and then trap on its instructions, and ggml, built
// for the CPU it sees, would die on them: setup.sh leaves AMX out where this probe fails.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
  enum { kRequestPermission = 0x1023, kTileData = 18 };  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return 1;
  uint8_t config[64] = {1};  // palette 1: eight tiles of 16 rows x 64 bytes
  for (int tile = 0; tile < 8; ++tile) {
    const uint16_t row_bytes = 64;
    memcpy(&config[16 + 2 * tile], &row_bytes, sizeof row_bytes);
    config[48 + tile] = 16;
  }
  static int8_t ones[16 * 64];
  static int32_t sums[16 * 16];
  memset(ones, 1, sizeof ones);
  __asm__ volatile("ldtilecfg %0" : : "m"(config));  // the intrinsic of GCC 12 loses stores (setup.sh)
  for (int round = 0; round < 200; ++round) {
    _tile_zero(4);
    _tile_loadd(0, ones, 64);
    _tile_loadd(1, ones, 64);
    _tile_dpbssd(4, 0, 1);
    usleep(1000);  // the state must survive being scheduled away
    _tile_stored(4, sums, 64);
    for (int i = 0; i < 16 * 16; ++i) {
      if (sums[i] != 64) return 1;
    }
  }
  return 0;
}
