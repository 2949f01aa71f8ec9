/**
 * `node bench/in-place.ts [--size 10GiB] [--pairs 3] [--dir D] [--tree]`: `snapshot restore
 * --in-place` of a raw volume with 1 % of changes since its backup.
 *
 * With --tree the volume is a directory with files of 64 MiB. Each restore takes turns with a plain
 * read of the same bytes by `dd`. Both run warm (in the page cache, as far as it fits) and cold.
 * Prints one JSON line for each pair and one with the medians, and removes its files at the end.
 */
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { parseBytes } from '../src/base/index.ts';
import { measure, type Measurement, median } from './measure.ts';
import { installPackage } from './package.ts';

const { values } = parseArgs({
  options: {
    size: { type: 'string', default: '1GiB' },
    pairs: { type: 'string', default: '3' },
    dir: { type: 'string', default: tmpdir() },
    tree: { type: 'boolean', default: false },
  },
});
const MIB = 2 ** 20;
/** A run of bytes that is changed, and how far they lie apart: 1 %. */
const CHANGED_BYTES = 4 * MIB;
const CHANGED_EVERY = 100;
const FILE_BYTES = 64 * MIB;

const bytes = parseBytes(values.size);
if (bytes === undefined || bytes < CHANGED_BYTES) throw new Error('--size is a size such as 10GiB');
const volumeBytes = bytes;
const work = fs.mkdtempSync(join(values.dir, 'longshore-in-place-'));
const source = join(work, 'source');
const env = { ...process.env, LONGSHORE_PASSWORD: 'bench', XDG_CACHE_HOME: join(work, 'cache') };
const [repo, fileBytes] = [join(work, 'repo'), values.tree ? FILE_BYTES : bytes];
const files = Array.from({ length: Math.ceil(bytes / fileBytes) }, (_, i) =>
  join(source, `volume-${i}`),
);
const READ = 'for file; do dd if="$file" of=/dev/null bs=4M status=none; done';
const shell = (script: string): void => {
  execFileSync('bash', ['-c', script], { stdio: ['ignore', 'ignore', 'pipe'] });
};

function makeSource(): void {
  fs.mkdirSync(source);
  for (const file of files) shell(`head -c ${fileBytes} /dev/urandom > '${file}'`);
}

/** The same places each time, other bytes. */
function change(): void {
  for (let at = 0; at < volumeBytes; at += CHANGED_EVERY * CHANGED_BYTES) {
    const file = files[Math.floor(at / fileBytes)] ?? '';
    const seek = (at % fileBytes) / MIB;
    shell(
      `dd if=/dev/urandom of='${file}' bs=1M count=${CHANGED_BYTES / MIB} seek=${seek} conv=notrunc status=none`,
    );
  }
}

/** Puts all into the page cache, or all of it out of it. */
function prepare(isCold: boolean): void {
  shell('sync');
  const all = isCold ? [...files, ...repositoryFiles()] : files;
  for (const file of all) {
    shell(
      isCold ? `dd if='${file}' iflag=nocache count=0 status=none` : `cat '${file}' > /dev/null`,
    );
  }
}

const repositoryFiles = (): string[] =>
  fs
    .readdirSync(repo, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));

try {
  const longshore = installPackage(join(work, 'package'));
  makeSource();
  const flags = ['--repo', repo];
  execFileSync(longshore, ['repository', 'create', ...flags], { env, stdio: 'pipe' });
  const volume = values.tree ? [source] : [files[0] ?? '', '--block'];
  await measure(longshore, ['snapshot', 'create', ...volume, ...flags], env);
  const restore = ['snapshot', 'restore', 'latest', ...volume, '--in-place', '--source'];
  const named = [...restore, values.tree ? source : (files[0] ?? ''), ...flags];
  const ratios: Record<string, number[]> = { warm: [], cold: [] };
  for (let pair = 0; pair < Number(values.pairs); pair++) {
    for (const cache of ['warm', 'cold'] as const) {
      prepare(cache === 'cold');
      const read = await measure('bash', ['-c', READ, 'bash', ...files], env);
      change();
      prepare(cache === 'cold');
      const inPlace: Measurement = await measure(longshore, named, env);
      const ratio = inPlace.seconds / read.seconds;
      ratios[cache]?.push(ratio);
      console.log(JSON.stringify({ cache, bytes, readSeconds: read.seconds, ...inPlace, ratio }));
    }
  }
  const medians = Object.entries(ratios).map(([cache, all]) => [cache, median(all)]);
  console.log(JSON.stringify({ ratios: Object.fromEntries(medians) as object }));
} finally {
  fs.rmSync(work, { recursive: true, force: true });
}
