import { builtinModules } from 'node:module';

/** How a bundle loads Node's modules, without a clash with its own names. */
export const GET_BUILTIN = 'globalThis.process.getBuiltinModule';

const IMPORT = /^import (?:(?:\* as )?([\w$]+))?(?:, )?(\{[^}]*\})? ?from "([^"]+)";/gm;

/**
 * Replaces imports of Node's own modules in a bundle by look-ups. An import reads all exports of a
 * module, and many exports load more code when read (WebCrypto, readline, option parsers). This
 * takes a sixth of the start-up time. Bundles have one import per statement, each at the start of a
 * line. The number of lines stays the same. The module `process` is imported under that name and
 * hides the global one, so GET_BUILTIN uses `globalThis`.
 */
export const lookUpBuiltins = (code: string): string =>
  code.replace(
    IMPORT,
    (statement: string, whole: string | undefined, named: string | undefined, path: string) => {
      const name = path.replace(/^node:/, '');
      if (!builtinModules.includes(name)) return statement;
      const found = `${GET_BUILTIN}("node:${name}")`;
      const parts = named?.replace(/([\w$]+) as ([\w$]+)/g, '$1: $2');
      return [whole, parts].flatMap((part) => (part ? `const ${part} = ${found};` : [])).join(' ');
    },
  );
