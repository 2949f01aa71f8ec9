/**
 * `node bench/generations.ts [GiB]`: a volume with 10 generations, each with a change of 1 %.
 *
 * Prints the stored bytes of each side after all of them, and those of FastCDC.
 * The bytes of Longshore and Kopia must be equal within 0.5 %.
 */
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { QUICK, Workplace } from './workplace.ts';

const GENERATIONS = 10;
const bytes = Number(process.argv[2] ?? 1) * 2 ** 30;
/** Writes of a database: 64 KiB at places drawn from a fixed seed. */
const WRITE_BYTES = 65_536;

const work = new Workplace('/dev/shm/longshore-generations', QUICK);
const volume = work.at('volume', 'data');

function makeVolume(): void {
  fs.rmSync(work.at('volume'), { recursive: true, force: true });
  fs.mkdirSync(work.at('volume'));
  // The same bytes on every side: a cipher of zeros.
  const key = '00'.repeat(32);
  const openssl = `openssl enc -aes-256-ctr -K ${key} -iv ${key.slice(0, 32)} -in /dev/zero`;
  execFileSync('bash', ['-c', `${openssl} 2>/dev/null | head -c ${bytes} > '${volume}' || true`]);
}

function change(generation: number): void {
  let state = generation + 1;
  const random = (): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
  const file = fs.openSync(volume, 'r+');
  for (let written = 0; written < bytes / 100; written += WRITE_BYTES) {
    const data = Buffer.alloc(WRITE_BYTES);
    for (let at = 0; at < WRITE_BYTES; at += 4) data.writeUInt32LE(random() * 2 ** 32, at);
    fs.writeSync(file, data, 0, WRITE_BYTES, Math.floor(random() * (bytes - WRITE_BYTES)));
  }
  fs.closeSync(file);
}

const sides = [
  ['longshore', 'ours', []],
  ['kopia', 'kopia', []],
  ['longshore, fastcdc-4m', 'ours', ['--splitter', 'fastcdc-4m']],
] as const;
const stored: number[] = [];
try {
  for (const [name, side, flags] of sides) {
    makeVolume();
    work.newRepository(side);
    await work.upload(side, 'volume', ...(side === 'ours' ? flags : []));
    for (let generation = 1; generation <= GENERATIONS; generation++) {
      change(generation);
      await work.upload(side, 'volume', ...(side === 'ours' ? flags : []));
    }
    work.verify(side);
    stored.push(work.bytesStored());
    console.log(`${name}: ${((stored.at(-1) ?? 0) / 2 ** 20).toFixed(1)} MiB stored`);
  }
  const [ours = 0, theirs = 1] = stored;
  console.log(`longshore / kopia: ${(ours / theirs).toFixed(4)}`);
} finally {
  fs.rmSync(work.directory, { recursive: true, force: true });
}
