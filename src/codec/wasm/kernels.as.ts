// AssemblyScript, not TypeScript: build.ts compiles it and appends the unrolled BLAKE2b. Functions
// keep no state: every pointer is into the shared memory that the caller owns. Tests compare with
// the slow twins in splitter/splitter.ts, @noble/hashes and node:crypto.

// @ts-nocheck
@inline function rotr32x2(v: v128): v128 {
  return i8x16.shuffle(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
}
@inline function rotr24x2(v: v128): v128 {
  return i8x16.shuffle(v, v, 3, 4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14, 15, 8, 9, 10);
}
@inline function rotr16x2(v: v128): v128 {
  return i8x16.shuffle(v, v, 2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9);
}
@inline function rotr63x2(v: v128): v128 {
  return v128.or(i64x2.add(v, v), i64x2.shr_u(v, 63));
}

@inline function entry(table: usize, byte: u32): u32 {
  return load<u32>(table + (<usize>byte << 2));
}

/**
 * Cut points of Kopia's buzhash32 in `len` bytes at `ptr`. The 64 bytes before `ptr` must be those
 * before it in the stream (zeros at its start). `count` is the length of the open chunk before
 * `ptr`. Writes the offsets after each cut to `out` (u32), at most len / min + 1 of them. Returns
 * their number.
 */
export function cutBuzhash(
  table: usize, ptr: usize, len: u32, count: u32, min: u32, max: u32, mask: u32, out: usize,
): u32 {
  let cuts: u32 = 0;
  let at: u32 = 0;
  while (at < len) {
    // The first possible cut is after the byte that gives the chunk `min` bytes.
    if (count + 1 < min) {
      const skip = min - 1 - count;
      if (skip >= len - at) return cuts;
      at += skip;
      count += skip;
    }
    let sum: u32 = 0;
    let p = ptr + at - 64;
    for (let i = 0; i < 64; i++) {
      sum = rotl<u32>(sum, 1) ^ entry(table, load<u8>(p + i));
    }
    const room = max - count;
    const stop = room < len - at ? at + room : len;
    let found = false;
    p = ptr + at;
    const end = ptr + stop;
    // Unrolled: the loop itself would take a third of the time. Within it `p` is 64 bytes behind.
    p -= 64;
    while (p + 72 <= end) {
      sum = rotl<u32>(sum, 1) ^ (entry(table, load<u8>(p, 0)) ^ entry(table, load<u8>(p, 64)));
      if ((sum & mask) == 0) { p += 1; found = true; break; }
      sum = rotl<u32>(sum, 1) ^ (entry(table, load<u8>(p, 1)) ^ entry(table, load<u8>(p, 65)));
      if ((sum & mask) == 0) { p += 2; found = true; break; }
      sum = rotl<u32>(sum, 1) ^ (entry(table, load<u8>(p, 2)) ^ entry(table, load<u8>(p, 66)));
      if ((sum & mask) == 0) { p += 3; found = true; break; }
      sum = rotl<u32>(sum, 1) ^ (entry(table, load<u8>(p, 3)) ^ entry(table, load<u8>(p, 67)));
      if ((sum & mask) == 0) { p += 4; found = true; break; }
      sum = rotl<u32>(sum, 1) ^ (entry(table, load<u8>(p, 4)) ^ entry(table, load<u8>(p, 68)));
      if ((sum & mask) == 0) { p += 5; found = true; break; }
      sum = rotl<u32>(sum, 1) ^ (entry(table, load<u8>(p, 5)) ^ entry(table, load<u8>(p, 69)));
      if ((sum & mask) == 0) { p += 6; found = true; break; }
      sum = rotl<u32>(sum, 1) ^ (entry(table, load<u8>(p, 6)) ^ entry(table, load<u8>(p, 70)));
      if ((sum & mask) == 0) { p += 7; found = true; break; }
      sum = rotl<u32>(sum, 1) ^ (entry(table, load<u8>(p, 7)) ^ entry(table, load<u8>(p, 71)));
      if ((sum & mask) == 0) { p += 8; found = true; break; }
      p += 8;
    }
    p += 64;
    while (!found && p < end) {
      sum = rotl<u32>(sum, 1) ^ entry(table, load<u8>(p - 64)) ^ entry(table, load<u8>(p));
      p++;
      if ((sum & mask) == 0) { found = true; break; }
    }
    const next = <u32>(p - ptr);
    count += next - at;
    at = next;
    if (found || count >= max) {
      store<u32>(out + (<usize>cuts << 2), at);
      cuts++;
      count = 0;
    }
  }
  return cuts;
}

@inline function big(x: u32): u32 { return bswap<u32>(x); }

/**
 * SHA-256 compression of one block: 64 bytes at `ptr`. `state` has 8 native u32, `k` has the 64
 * round constants, and `w` has 256 bytes of scratch.
 */
export function sha256Block(k: usize, w: usize, state: usize, ptr: usize): void {
  for (let i = 0; i < 16; i++) store<u32>(w + (i << 2), big(load<u32>(ptr + (i << 2))));
  for (let i = 16; i < 64; i++) {
    const x = load<u32>(w + ((i - 15) << 2));
    const y = load<u32>(w + ((i - 2) << 2));
    const s0 = rotr<u32>(x, 7) ^ rotr<u32>(x, 18) ^ (x >> 3);
    const s1 = rotr<u32>(y, 17) ^ rotr<u32>(y, 19) ^ (y >> 10);
    store<u32>(w + (i << 2), load<u32>(w + ((i - 16) << 2)) + s0 + load<u32>(w + ((i - 7) << 2)) + s1);
  }
  let a = load<u32>(state), b = load<u32>(state, 4), c = load<u32>(state, 8), d = load<u32>(state, 12);
  let e = load<u32>(state, 16), f = load<u32>(state, 20), g = load<u32>(state, 24), h = load<u32>(state, 28);
  for (let i = 0; i < 64; i++) {
    const s1 = rotr<u32>(e, 6) ^ rotr<u32>(e, 11) ^ rotr<u32>(e, 25);
    const t1 = h + s1 + ((e & f) ^ (~e & g)) + load<u32>(k + (i << 2)) + load<u32>(w + (i << 2));
    const s0 = rotr<u32>(a, 2) ^ rotr<u32>(a, 13) ^ rotr<u32>(a, 22);
    const t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g; g = f; f = e; e = d + t1; d = c; c = b; b = a; a = t1 + t2;
  }
  store<u32>(state, load<u32>(state) + a);
  store<u32>(state, load<u32>(state, 4) + b, 4);
  store<u32>(state, load<u32>(state, 8) + c, 8);
  store<u32>(state, load<u32>(state, 12) + d, 12);
  store<u32>(state, load<u32>(state, 16) + e, 16);
  store<u32>(state, load<u32>(state, 20) + f, 20);
  store<u32>(state, load<u32>(state, 24) + g, 24);
  store<u32>(state, load<u32>(state, 28) + h, 28);
}
