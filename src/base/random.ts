import { randomBytes as nodeRandomBytes } from 'node:crypto';

/** The only source of randomness, except for nonces in `codec/`. Simulations replace it. */
export type RandomBytes = (length: number) => Uint8Array;

export const randomBytes: RandomBytes = (length) => nodeRandomBytes(length);
export const randomHex = (bytes: number, random: RandomBytes = randomBytes): string =>
  Buffer.from(random(bytes)).toString('hex');
