import * as fs from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';

/**
 * Words in capitals with an underscore that are no error codes: environment variables, and names in
 * other programs' formats.
 */
export const OTHER_WORDS: readonly RegExp[] = [
  /^(?:AWS|AZURE|GOOGLE|LONGSHORE)_/,
  /^(?:POD_NAME|POD_NAMESPACE|NODE_NAME|VELERO_NAMESPACE)$/,
  /^(?:HTTPS?|NO)_PROXY$/,
  // Capabilities of Linux, and a value of an AWS setting.
  /^(?:DAC_OVERRIDE|DAC_READ_SEARCH|WHEN_REQUIRED)$/,
  // Kopia's format blob, and zlib.
  /^(?:AES256_GCM|Z_BUF_ERROR)$/,
  // The YAML library.
  /^MULTIPLE_DOCS$/,
];

const WORD = /^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*$/;

/** Error codes of a source: capitals with an underscore, and single words that create an error. */
export function codesOf(source: string): string[] {
  const found = new Set<string>();
  const visit = (node: ts.Node): void => {
    if (ts.isStringLiteralLike(node) && WORD.test(node.text) && isCode(node)) found.add(node.text);
    ts.forEachChild(node, visit);
  };
  visit(ts.createSourceFile('source.ts', source, ts.ScriptTarget.Latest, true));
  return [...found];
}

function isCode(node: ts.StringLiteralLike): boolean {
  if (node.text.includes('_')) return !OTHER_WORDS.some((other) => other.test(node.text));
  const { parent } = node;
  if (!ts.isNewExpression(parent) && !ts.isCallExpression(parent)) return false;
  const callee = parent.expression;
  const makes = callee.kind === ts.SyntaxKind.SuperKeyword || callee.getText().endsWith('Error');
  return makes && parent.arguments?.[0] === node;
}

/** The files of `src` with each code, by code. */
export function allCodes(root: string): Map<string, string[]> {
  const codes = new Map<string, string[]>();
  for (const file of fs.globSync('**/*.ts', { cwd: root }).sort()) {
    for (const code of codesOf(fs.readFileSync(join(root, file), 'utf8'))) {
      const files = codes.get(code);
      if (files) files.push(file);
      else codes.set(code, [file]);
    }
  }
  return codes;
}
