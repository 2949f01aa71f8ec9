import { spawnSync } from 'node:child_process';
import { expect, test } from 'vitest';
import { lookUpBuiltins } from '../../src/build-builtins.ts';

test("a bundle looks Node's own modules up, and imports all others", () => {
  const code = [
    'import { a, b as c } from "node:fs";',
    'import {',
    '  d,',
    '  e as f',
    '} from "crypto";',
    'import * as g from "node:os";',
    'import h, { i } from "node:path";',
    'import { j } from "./chunk.js";',
    'import k from "koffi";',
    'import "./other.js";',
  ].join('\n');
  expect(lookUpBuiltins(code).split('\n')).toEqual([
    'const { a, b: c } = globalThis.process.getBuiltinModule("node:fs");',
    'const {',
    '  d,',
    '  e: f',
    '} = globalThis.process.getBuiltinModule("node:crypto");',
    'const g = globalThis.process.getBuiltinModule("node:os");',
    'const h = globalThis.process.getBuiltinModule("node:path"); const { i } = globalThis.process.getBuiltinModule("node:path");',
    'import { j } from "./chunk.js";',
    'import k from "koffi";',
    'import "./other.js";',
  ]);
});

test('a file of a bundle that imports the module of process starts', () => {
  const code = lookUpBuiltins('import process from "node:process";\nimport os from "node:os";');
  const program = `${code}\nprocess.stdout.write(typeof os.hostname);`;
  const { stdout, stderr } = spawnSync(
    process.execPath,
    ['--input-type=module', '--eval', program],
    { encoding: 'utf8' },
  );
  expect({ stdout, stderr }).toEqual({ stdout: 'function', stderr: '' });
});
