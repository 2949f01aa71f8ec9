import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { measure, type Measurement } from './measure.ts';
import type { Side } from './peers.ts';
import { makeFiles, makeRandom } from './sources.ts';
import { installPackage } from './package.ts';
import { findTool, TOOLS } from './tools.ts';

const ROOT = new URL('..', import.meta.url).pathname;
export const KOPIA = findTool('kopia') ?? 'kopia';

export interface Sizes {
  readonly largeBytes: number;
  readonly smallFiles: number;
  /** Like {@link smallFiles}: most volumes are no larger. */
  readonly fewFiles: number;
  /** Each has 300 to 1,800 bytes. */
  readonly tinyFiles: number;
  readonly sparseBytes: number;
  readonly sparseDataBytes: number;
  /** More than a run writes. */
  readonly warmBytes: number;
}
export const FULL: Sizes = {
  largeBytes: 3 * 2 ** 30,
  smallFiles: 100_000,
  fewFiles: 20_000,
  tinyFiles: 1_000_000,
  sparseBytes: 16 * 2 ** 30,
  sparseDataBytes: 3 * 2 ** 30,
  warmBytes: 4 * 2 ** 30,
};
export const QUICK: Sizes = {
  largeBytes: 64 << 20,
  smallFiles: 2000,
  fewFiles: 1000,
  tinyFiles: 5000,
  sparseBytes: 512 << 20,
  sparseDataBytes: 96 << 20,
  warmBytes: 1 << 20,
};
const SPARSE_PIECES = 24;
const CACHES = ['kopia-cache', 'rustic-cache', 'restic-cache', 'borg'];

/** The data to back up. */
export type Source = 'large' | 'small' | 'few' | 'tiny' | 'sparse' | 'text';

/** Where repositories lie: a directory of the workplace, or a bucket. */
export interface Place {
  readonly location: string;
  /** What follows `kopia repository create|connect`. */
  readonly kopia: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  /** Directory whose files are the repository. */
  readonly directory: string;
  /** Makes it empty. */
  clear(): void;
}

/**
 * Sources, repository and commands of both sides in one folder. Kopia makes its repositories, we
 * make ours.
 */
export class Workplace {
  readonly directory: string;
  readonly sizes: Sizes;
  readonly #env: NodeJS.ProcessEnv;
  readonly #longshore: string;

  readonly #place: Place;

  constructor(directory: string, sizes: Sizes, place?: Place) {
    this.directory = directory;
    this.sizes = sizes;
    const repo = this.at('repo');
    this.#place = place ?? {
      location: repo,
      kopia: ['filesystem', '--path', repo],
      env: {},
      directory: repo,
      clear: () => fs.rmSync(repo, { recursive: true, force: true }),
    };
    this.#env = {
      ...process.env,
      LONGSHORE_PASSWORD: 'bench',
      KOPIA_PASSWORD: 'bench',
      KOPIA_CONFIG_PATH: this.at('kopia-config'),
      KOPIA_CACHE_DIRECTORY: this.at('kopia-cache'),
      KOPIA_LOG_DIR: this.at('kopia-log'),
      KOPIA_CHECK_FOR_UPDATES: 'false',
      XDG_CACHE_HOME: this.at('our-cache'),
      ...this.#place.env,
    };
    for (const tool of Object.values(TOOLS)) Object.assign(this.#env, tool.env(directory));
    fs.rmSync(directory, { recursive: true, force: true });
    fs.mkdirSync(directory, { recursive: true });
    this.#longshore = installPackage(this.at('package'));
  }

  at(...names: string[]): string {
    return join(this.directory, ...names);
  }

  kopia(...parameters: string[]): string {
    return execFileSync(KOPIA, parameters, {
      env: this.#env,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
      maxBuffer: 1 << 28,
    });
  }

  longshore(...parameters: string[]): string {
    const options = { env: this.#env, encoding: 'utf8', maxBuffer: 1 << 28 } as const;
    return execFileSync(this.#longshore, parameters, options);
  }

  #measure(side: Side, parameters: string[], cwd = this.directory): Promise<Measurement> {
    const command = side === 'ours' ? this.#longshore : (findTool(side) ?? side);
    return measure(command, parameters, this.#env, cwd);
  }

  /**
   * A new repository of the side's own making; Kopia is connected to ours as well, to verify. With
   * `create`, flags of Kopia, both sides get a repository that Kopia makes.
   */
  newRepository(side: Side, compression?: string, create: readonly string[] = []): void {
    this.#place.clear();
    // Some keep formats and indexes of what lay at this path before.
    this.drop('kopia-config');
    this.dropCaches();
    if (side !== 'ours' && side !== 'kopia') {
      const parameters = TOOLS[side].create(this.#place.location);
      execFileSync(findTool(side) ?? side, parameters, { env: this.#env, stdio: 'ignore' });
      return;
    }
    if (side === 'ours' && create.length === 0) {
      this.longshore('repository', 'create', '--repo', this.#place.location);
      this.kopia('repository', 'connect', ...this.#place.kopia);
    } else {
      this.kopia('repository', 'create', ...this.#place.kopia, ...create);
    }
    if (compression) this.kopia('policy', 'set', '--global', `--compression=${compression}`);
  }

  upload(side: Side, source: string, ...flags: string[]): Promise<Measurement> {
    const [path, repo] = [this.at(source), this.#place.location];
    if (side === 'ours') {
      return this.#measure(side, ['snapshot', 'create', path, '--repo', repo, ...flags]);
    }
    if (side === 'kopia') return this.#measure(side, ['snapshot', 'create', path, '--no-progress']);
    return this.#measure(side, TOOLS[side].backup(repo, path));
  }

  /** Measures a command line of Longshore or of Kopia. */
  run(
    side: 'ours' | 'kopia',
    parameters: readonly string[],
    { onRepository = false } = {},
  ): Promise<Measurement> {
    const flags = side === 'ours' && onRepository ? ['--repo', this.#place.location] : [];
    return this.#measure(side, [...parameters, ...flags]);
  }

  /** Restores the newest snapshot, checks that it equals the source, and removes it. */
  async restore(
    side: Side,
    source: string,
    before: () => Promise<unknown> = () => Promise.resolve(),
    caches: 'cold' | 'warm' = 'cold',
  ): Promise<Measurement> {
    const [path, repo, out] = [this.at(source), this.#place.location, this.at('out')];
    if (side !== 'ours' && side !== 'kopia') {
      const tool = TOOLS[side];
      fs.mkdirSync(out);
      const result = await this.#measure(side, tool.restore(repo, path, out), out);
      return this.#checkRestored(path, tool.restoredAt(path, out), result);
    }
    type Listed = { rootEntry: { obj: string } }[];
    const newest = (JSON.parse(this.kopia('snapshot', 'list', '--json')) as Listed).at(-1);
    const root = newest?.rootEntry.obj ?? '';
    if (caches === 'cold') this.dropCaches();
    await before();
    const flags = side === 'ours' ? ['--repo', repo] : ['--no-progress'];
    const result = await this.#measure(side, ['snapshot', 'restore', root, out, ...flags]);
    return this.#checkRestored(path, out, result);
  }

  #checkRestored(source: string, restored: string, result: Measurement): Measurement {
    execFileSync('diff', ['-rq', '--no-dereference', source, restored]);
    this.drop('out');
    return result;
  }

  /** What either side keeps of a repository; the node's compiled code stays. */
  dropCaches(): void {
    for (const name of CACHES) this.drop(name);
    const ours = this.at('our-cache', 'longshore');
    for (const name of fs.existsSync(ours) ? fs.readdirSync(ours) : []) {
      if (name !== 'node') this.drop(join('our-cache', 'longshore', name));
    }
  }

  /** The real Kopia reads back everything that we wrote. */
  verify(side: Side): void {
    if (side === 'ours') this.kopia('snapshot', 'verify', '--verify-files-percent=100');
  }

  bytesStored(): number {
    return fs
      .readdirSync(this.#place.directory, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .reduce((sum, entry) => sum + fs.statSync(join(entry.parentPath, entry.name)).size, 0);
  }

  /**
   * Gives the next run memory that was used lately. A virtual machine returns free pages to its
   * host within seconds. Getting them again costs more than the backup itself: copying 3 GiB took 2
   * s or 11 s.
   */
  warm(): void {
    const path = this.at('warm');
    execFileSync('bash', ['-c', `head -c ${this.sizes.warmBytes} /dev/zero > '${path}'`]);
    fs.rmSync(path);
  }

  /** Makes a source once. */
  need(name: Source): void {
    if (fs.existsSync(this.at(name))) return;
    fs.mkdirSync(this.at(name), { recursive: true });
    if (name === 'large') makeRandom(this.at('large', 'volume'), this.sizes.largeBytes);
    else if (name === 'small') makeFiles(this.at(name), this.sizes.smallFiles);
    else if (name === 'few') makeFiles(this.at(name), this.sizes.fewFiles);
    else if (name === 'tiny') makeFiles(this.at(name), this.sizes.tinyFiles, 'tiny');
    else if (name === 'sparse') this.#makeSparse();
    else this.#makeText();
  }

  drop(name: string): void {
    fs.rmSync(this.at(name), { recursive: true, force: true });
  }

  /** Data in 24 pieces, spread over an image of holes. */
  #makeSparse(): void {
    const { sparseBytes, sparseDataBytes } = this.sizes;
    const image = this.at('sparse', 'image');
    fs.writeFileSync(image, '');
    fs.truncateSync(image, sparseBytes);
    const piece = Math.floor(sparseDataBytes / SPARSE_PIECES / (1 << 20));
    const step = Math.floor(sparseBytes / SPARSE_PIECES / (1 << 20));
    for (let i = 0; i < SPARSE_PIECES; i++) {
      const dd = `of='${image}' bs=1M count=${piece} seek=${i * step} conv=notrunc`;
      execFileSync('bash', ['-c', `dd if=/dev/urandom ${dd} status=none`]);
    }
  }

  /** Programs and text of this machine, over and over, each time with another first line. */
  #makeText(): void {
    const out = fs.openSync(this.at('text', 'volume'), 'w');
    const programs = fs.readFileSync(process.execPath).subarray(0, 48 << 20);
    const words = Buffer.from(this.#words());
    let written = 0;
    for (let round = 0; written < this.sizes.largeBytes; round++) {
      const salted = Buffer.from(programs);
      // Different in every 64 KiB, so that nothing of it is found again.
      for (let at = 0; at < salted.length; at += 65_536) salted.writeUInt32LE(round, at);
      for (const part of [salted, words, Buffer.from(`round ${round}\n`.repeat(3))]) {
        written += fs.writeSync(out, part.subarray(0, this.sizes.largeBytes - written));
      }
    }
    fs.closeSync(out);
  }

  #words(): string {
    const lines: string[] = [];
    for (const name of ['README.md', 'ARCHITECTURE.md', 'package-lock.json']) {
      lines.push(fs.readFileSync(join(ROOT, name), 'utf8'));
    }
    return lines.join('\n');
  }
}
