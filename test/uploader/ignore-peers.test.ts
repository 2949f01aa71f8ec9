import { execFileSync, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import type { ObjectId } from '../../src/repository/index.ts';
import {
  parseIgnoreFile,
  parsePathPattern,
  type PathPattern,
  readDirectory,
} from '../../src/snapshot/index.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { randomOf } from '../support/random.ts';
import { openTest, PASSWORD } from '../support/repositories.ts';

/**
 * Random rules against the answers of Kopia and of git. A seed is a tree that stands once below
 * each of many directories, and each directory has rules of its own. `SEED=17 SEEDS=1` repeats one.
 */
const IS_SOAK = process.env.SOAK === '1';
const SEEDS = Number(process.env.SEEDS ?? (IS_SOAK ? 100 : 2));
const FIRST = Number(process.env.SEED ?? 1);
const DIRECTORIES = IS_SOAK ? 120 : 40;
const PATHS = IS_SOAK ? 300 : 40;
const work = tempDirectory('ignore-peers');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

const PIECES = [
  ...[
    '*',
    '**',
    '?',
    '/',
    '[ab]',
    '[!a]',
    '[^a]',
    '[a-c]',
    '[!/]',
    '[^b-c]',
    '[[:alpha:]]',
    '[a-]',
  ],
  ...[
    '[^[:digit:]]',
    '[]a]',
    '[!]a]',
    '\\*',
    '\\!',
    '\\#',
    '\\ ',
    '!',
    '#',
    ' ',
    '\t',
    '^',
    '-',
    ']',
  ],
  ...['a', 'b', 'c', 'a', 'b', '1', 'ab', '.', 'é', '**/', '/**', '/**/', '*a*', '/**a', 'a**'],
  ...['**a', 'a/**/b', '*.a'],
];
const NAMES = [
  ...['a', 'b', 'c', 'ab', 'ba', 'abc', '1', 'a1', '.a', 'b.a', 'é', 'a b', 'a ', ' a', '!a', '#a'],
  ...['*', 'a*', '^a', 'a]', '-', '[a]', 'a\tb', 'long.name.a'],
];

class Scene {
  readonly #random: () => number;
  readonly #paths: string[];
  readonly tree: string;

  constructor(seed: number, names = NAMES) {
    this.#random = randomOf(seed);
    this.tree = join(work, `tree-${seed}`);
    const depth = (): number => 1 + this.#below(4);
    this.#paths = Array.from({ length: PATHS }, () =>
      Array.from({ length: depth() }, () => this.#pick(names)).join('/'),
    );
  }

  #below(end: number): number {
    return Math.floor(this.#random() * end);
  }

  #pick<T>(list: readonly T[]): T {
    return list[this.#below(list.length)] as T;
  }

  chance(probability: number): boolean {
    return this.#random() < probability;
  }

  rule(): string {
    const parts = Array.from({ length: 1 + this.#below(5) }, () => this.#pick(PIECES));
    const start = this.chance(0.1) ? '!' : '';
    return start + parts.join('') + (this.chance(0.1) ? '/' : '') + (this.chance(0.1) ? ' ' : '');
  }

  /** Rules that the check does not refuse. */
  rules(check: (text: string) => void, lineEnd: () => string): string {
    for (;;) {
      const count = this.chance(0.3) ? 1 + this.#below(3) : 1;
      const lines = Array.from({ length: count }, () => this.rule() + lineEnd());
      try {
        check(lines.join(''));
        return lines.join('');
      } catch {
        // Another one.
      }
    }
  }

  fill(directory: string): void {
    for (const path of this.#paths) {
      const above = join(directory, path, '..');
      try {
        fs.mkdirSync(above, { recursive: true });
        if (!fs.existsSync(join(directory, path))) fs.writeFileSync(join(directory, path), '');
      } catch {
        // A file has the name of a directory.
      }
    }
  }
}

/** Files and directories that rules leave, by path below `directory`. */
function left(
  directory: string,
  ignores: (path: string, isDirectory: boolean) => boolean,
  below = '',
): string[] {
  return fs.readdirSync(join(directory, below), { withFileTypes: true }).flatMap((entry) => {
    const path = below === '' ? entry.name : `${below}/${entry.name}`;
    if (ignores(path, entry.isDirectory())) return [];
    return entry.isDirectory() ? [path, ...left(directory, ignores, path)] : [path];
  });
}

const seeds = Array.from({ length: SEEDS }, (_, i) => FIRST + i);

describe.skipIf(!hasKopia)('rules of ignore files', () => {
  it.each(seeds)('leave out what Kopia leaves out, seed %i', { timeout: 600_000 }, async (seed) => {
    const scene = new Scene(seed);
    const kopia = new Kopia(PASSWORD).create(join(work, `kopia-${seed}`));
    const rules = new Map<string, string>();
    for (let i = 0; i < DIRECTORIES; i++) {
      const name = `r${i}`;
      const lineEnd = (): string => (scene.chance(0.2) ? '\r\n' : '\n');
      const text = scene.rules((each) => void parseIgnoreFile(each, ''), lineEnd);
      rules.set(name, text);
      fs.mkdirSync(join(scene.tree, name), { recursive: true });
      fs.writeFileSync(join(scene.tree, name, '.kopiaignore'), text);
      scene.fill(join(scene.tree, name));
    }
    kopia.run('snapshot', 'create', scene.tree, '--log-level=error');
    const [snapshot] = kopia.json<{ rootEntry: { obj: string } }[]>('snapshot', 'list', scene.tree);
    await using repository = await openTest(join(work, `kopia-${seed}`));
    const stored = async (id: ObjectId, at: string): Promise<string[]> => {
      const paths: string[] = [];
      for (const { name, type, objectId } of await readDirectory(repository, id)) {
        paths.push(at + name);
        if (type === 'd') paths.push(...(await stored(objectId, `${at}${name}/`)));
      }
      return paths;
    };
    const root = await readDirectory(repository, snapshot?.rootEntry.obj as ObjectId);
    for (const { name, objectId } of root) {
      const patterns = parseIgnoreFile(rules.get(name) ?? '', `/${name}`);
      const ignores = (path: string, isDirectory: boolean): boolean => {
        let isIgnored = false;
        for (const pattern of patterns) {
          if (pattern.negated !== isIgnored) continue;
          if (pattern.applies(`/${name}/${path}`, isDirectory)) isIgnored = !pattern.negated;
        }
        return isIgnored;
      };
      const ours = left(join(scene.tree, name), ignores).sort();
      const theirs = (await stored(objectId, '')).sort();
      expect({ rules: rules.get(name), left: ours }).toEqual({
        rules: rules.get(name),
        left: theirs,
      });
    }
  });
});

const hasGit = spawnSync('git', ['--version']).status === 0;

describe.skipIf(!hasGit)('patterns of options', () => {
  it.each(seeds)('leave out what git leaves out, seed %i', { timeout: 600_000 }, (seed) => {
    // To git a name is bytes, and to us characters.
    const ascii = NAMES.filter((name) => /^[\0-\x7f]*$/.test(name));
    const scene = new Scene(seed + 1000, ascii);
    const files = join(scene.tree, 'files');
    execFileSync('git', ['init', '-q', scene.tree]);
    fs.mkdirSync(files);
    scene.fill(files);
    for (let i = 0; i < DIRECTORIES; i++) {
      const check = (text: string): void => {
        // Git's file has comments.
        if (/[^\0-\x7f]|^#/mu.test(text)) throw new Error('another one');
        for (const line of text.trimEnd().split('\n')) parsePathPattern(line);
      };
      const text = scene.rules(check, () => '\n');
      const list = join(work, 'git-rules');
      fs.writeFileSync(list, text);
      const flags = ['ls-files', '--others', '-z', `--exclude-from=${list}`];
      const theirs = execFileSync('git', ['-C', scene.tree, ...flags]);
      const patterns = text
        .split('\n')
        .filter((line) => line.trim() !== '')
        .map(parsePathPattern);
      const ignores = (path: string, isDirectory: boolean): boolean => {
        const last = patterns.findLast((each: PathPattern) =>
          each.applies(`/${path}`, isDirectory),
        );
        return last !== undefined && !last.negated;
      };
      const ours = left(
        scene.tree,
        (path, isDirectory) => path === '.git' || ignores(path, isDirectory),
      )
        .filter((path) => fs.statSync(join(scene.tree, path)).isFile())
        .sort();
      const files = theirs
        .toString()
        .split('\0')
        .filter((path) => path !== '')
        .sort();
      expect({ text, left: ours }).toEqual({ text, left: files });
    }
  });
});
