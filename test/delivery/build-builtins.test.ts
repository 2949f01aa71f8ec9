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
    'const { a, b: c } = process.getBuiltinModule("node:fs");',
    'const {',
    '  d,',
    '  e: f',
    '} = process.getBuiltinModule("node:crypto");',
    'const g = process.getBuiltinModule("node:os");',
    'const h = process.getBuiltinModule("node:path"); const { i } = process.getBuiltinModule("node:path");',
    'import { j } from "./chunk.js";',
    'import k from "koffi";',
    'import "./other.js";',
  ]);
});
