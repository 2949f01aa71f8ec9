import { builtinModules } from 'node:module';

/** How a bundle asks for one of Node's modules, whatever names it has of its own. */
export const GET_BUILTIN = 'globalThis.process.getBuiltinModule';

const IMPORT = /^import (?:(?:\* as )?([\w$]+))?(?:, )?(\{[^}]*\})? ?from "([^"]+)";/gm;

/**
 * Replaces imports of Node's own modules in a bundle by look-ups. An import asks such a module for
 * all that it exports, and many exports load something more when they are asked for (WebCrypto,
 * readline, parsers of options): a sixth of the time that the program takes to start. Bundles have
 * one import a statement, each at the beginning of a line; lines stay as many. The module of
 * `process` is imported by that name, which hides the global one from the whole file: hence the
 * long way to it.
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
