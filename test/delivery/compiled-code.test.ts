import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { tempDirectory } from '../support/kopia.ts';

const PROGRAM = new URL('../../image/compiled-code.cjs', import.meta.url).pathname;
const work = tempDirectory('compiled-code');
/** Beside the program lies a file of its own for as long as it runs, so that it runs from here. */
const program = join(work, 'compiled-code.cjs');
const ran = join(work, 'ran');
const entry = join(work, 'entry.mjs');
let caches = 0;

beforeAll(() => {
  fs.copyFileSync(PROGRAM, program);
});
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

function write(name: string, text: string): string {
  const path = join(work, name);
  fs.writeFileSync(path, text);
  return path;
}

interface Run {
  readonly flags?: readonly string[];
  readonly modules?: readonly string[];
  readonly cache?: string;
  readonly stderr?: 'pipe' | number;
}

/** Files of the cache by their names, and the output. */
function compile(run: Run = {}): {
  status: number | null;
  stderr: string;
  files: Map<string, string>;
} {
  const { flags = [], modules = [entry], stderr = 'pipe' } = run;
  const cache = run.cache ?? join(work, `cache-${caches++}`);
  const parameters = ['--random-seed=1', ...flags, program, cache, ...modules];
  const result = spawnSync(process.execPath, parameters, {
    // Without the environment of the tests, which may name a folder for compiled code.
    env: {},
    stdio: ['ignore', 'pipe', stderr],
    encoding: 'utf8',
  });
  const files = new Map<string, string>();
  if (fs.existsSync(cache) && fs.statSync(cache).isDirectory()) {
    for (const path of fs.globSync('*/*', { cwd: cache }).sort()) {
      files.set(path, fs.readFileSync(join(cache, path), 'base64'));
    }
  }
  return { status: result.status, stderr: result.stderr ?? '', files };
}

describe('compiled code of the image', () => {
  const PARTS = 12;
  beforeAll(() => {
    const trace = `await import('node:fs').then((fs) => fs.writeFileSync('${ran}', ''));`;
    let imports = '';
    for (let part = 0; part < PARTS; part++) {
      // The parts have different lengths: if they are read at the same time, the last is not always
      // done last.
      const functions = Array.from({ length: (PARTS - part) * 50 }, (_, each) => {
        return `export function f${each}(a) { return (() => (b) => a + b + ${each})(); }`;
      });
      write(`part-${part}.mjs`, functions.join('\n'));
      imports += `import { f1 as f${part} } from './part-${part}.mjs';\n`;
    }
    write('later.mjs', `${trace}\nexport const later = 1;\n`);
    fs.writeFileSync(entry, `${imports}import './later.mjs';\nsetTimeout(f1, 1);\n${trace}\n`);
  });
  beforeEach(() => fs.rmSync(ran, { force: true }));

  it('is of each module and of all that it imports, and nothing has run', () => {
    const { status, stderr, files } = compile();
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(files.size).toBe(PARTS + 2);
    expect(fs.existsSync(ran)).toBe(false);
  });

  it('is the same on a busy machine, in whatever order modules are named and wherever standard error leads', () => {
    const modules = [entry, join(work, 'part-3.mjs')];
    const { status, files } = compile({ modules });
    expect(status).toBe(0);
    const log = fs.openSync(join(work, 'log'), 'w');
    const busy: ChildProcess[] = [];
    try {
      expect(compile({ modules, stderr: log }).files).toEqual(files);
      for (let each = 0; each < 3 * availableParallelism(); each++) {
        busy.push(spawn(process.execPath, ['--eval', 'for (;;);'], { stdio: 'ignore' }));
      }
      for (let time = 0; time < 5; time++) {
        expect(compile({ modules: modules.toReversed() }).files).toEqual(files);
      }
    } finally {
      for (const each of busy) each.kill('SIGKILL');
      fs.closeSync(log);
    }
  }, 120_000);

  it('is what Node takes as it is when the program runs', () => {
    const cache = join(work, 'taken');
    expect(compile({ cache }).status).toBe(0);
    const env = { NODE_COMPILE_CACHE: cache, NODE_DEBUG_NATIVE: 'COMPILE_CACHE' };
    const { stdout, stderr } = spawnSync(process.execPath, [entry], { env, encoding: 'utf8' });
    expect((stdout + stderr).match(/ was accepted/g)).toHaveLength(PARTS + 2);
    expect(stdout + stderr).not.toMatch(/ was (rejected|not initialized)/);
    expect(fs.existsSync(ran)).toBe(true);
  });

  describe('is not made', () => {
    const refusal = (run: Run): string => {
      const { status, stderr } = compile(run);
      expect(status).toBe(1);
      return stderr;
    };

    it('where it cannot be kept', () => {
      const cache = write('a-file', '');
      expect(refusal({ cache })).toMatch(
        /Error: Node keeps no compiled code: .*cache directory.*\n/i,
      );
    });

    it('of a module that is not valid, or not there', () => {
      const modules = [write('invalid.mjs', 'export const = 1;\n')];
      expect(refusal({ modules })).toMatch(/SyntaxError: Unexpected token '='/);
      expect(refusal({ modules: [join(work, 'missing.mjs')] })).toMatch(/ERR_MODULE_NOT_FOUND/);
    });

    it('when Node has let the modules run', () => {
      const hook = write(
        'hook.cjs',
        "const m = require('node:module'); const load = m._load; m._load = (name, ...rest) => name.endsWith('importer.mjs') ? {} : load(name, ...rest);\n",
      );
      expect(refusal({ flags: ['--require', hook] })).toMatch(/Error: the modules have run, so/);
    });

    it('when garbage was collected meanwhile', () => {
      expect(refusal({ flags: ['--gc-global', '--max-semi-space-size=1'] })).toMatch(
        /Error: garbage was collected, so/,
      );
    });

    it('when Node has not kept all of it', () => {
      write('data.json', '{}');
      const modules = [write('json.mjs', "import './data.json' with { type: 'json' };\n")];
      expect(refusal({ modules })).toMatch(
        /Error: Node has kept compiled code of 1 files, not of 2\n/,
      );
    });
  });
});
