import { readFileSync, readdirSync } from 'node:fs';
import { relative } from 'node:path';
import ts from 'typescript';

/**
 * Finds English texts in the sources, such as messages, help, and cells of tables. There is no list
 * of calls that show text, because new calls would be forgotten.
 */
export interface Sentences {
  readonly file: string;
  readonly texts: readonly string[];
}

const ROOT = new URL('../../', import.meta.url).pathname;

/**
 * Two words with a blank between them: `cannot read {path}`, but neither `--repo <location>` nor
 * `text/plain; q=1`.
 */
const TWO_WORDS = /(^|[\s("'{])[A-Za-z][A-Za-z'’-]+[}"')]*[,;:.!?]? ["'(]?(\{|[A-Za-z])/;

/** Calls with single words for users: `.description('Snapshots')`, `new Error('stopped')`. */
const SHOWN = /^(description|summary|Error|CodedError|UsageError)$/;

/** Texts that no user reads: the signature of a libc function, a header, code. */
const NO_SENTENCE = /^\w+ _?\w+\(.*\)$|^Bearer \{\w+\}$|^content-type: |;$|\) \{\n/i;

/** Only developers run it. */
const BUILD_SCRIPT = /\/build\.ts$/;

export function sentencesIn(folder: string): Sentences[] {
  return readdirSync(`${ROOT}${folder}`, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && /(?<!\.d|\.as)\.ts$/.test(entry.name))
    .map((entry) => relative(ROOT, `${entry.parentPath}/${entry.name}`))
    .filter((file) => !BUILD_SCRIPT.test(file))
    .sort((a, b) => (a < b ? -1 : 1))
    .map((file) => ({ file, texts: sentencesOf(readFileSync(`${ROOT}${file}`, 'utf8')) }))
    .filter(({ texts }) => texts.length > 0);
}

/** The sentences of one source text in order, each once. */
export function sentencesOf(source: string): string[] {
  const found = new Set<string>();
  const visit = (node: ts.Node): void => {
    if (isNoText(node)) return;
    const text = ts.isExpression(node) ? textOf(node) : undefined;
    if (text === undefined) {
      ts.forEachChild(node, visit);
      return;
    }
    if (TWO_WORDS.test(text) ? !NO_SENTENCE.test(text) : isShown(node)) found.add(onOneLine(text));
    for (const hidden of placeholdersOf(node)) visit(hidden);
  };
  visit(ts.createSourceFile('source.ts', source, ts.ScriptTarget.Latest, true));
  return [...found];
}

const isNoText = (node: ts.Node): boolean =>
  ts.isImportDeclaration(node) ||
  ts.isExportDeclaration(node) ||
  ts.isTypeNode(node) ||
  ts.isTaggedTemplateExpression(node);

const onOneLine = (text: string): string => text.replaceAll('\n', '\\n');

/** The text of an expression, with placeholders in braces; undefined for other expressions. */
function textOf(node: ts.Expression): string | undefined {
  if (ts.isParenthesizedExpression(node)) return textOf(node.expression);
  if (ts.isStringLiteral(node) || ts.isNoSubstitutionTemplateLiteral(node)) return node.text;
  if (ts.isTemplateExpression(node)) {
    const spans = node.templateSpans.map(
      (span) => placeholder(span.expression) + span.literal.text,
    );
    return node.head.text + spans.join('');
  }
  if (isPlus(node)) {
    const [left, right] = [textOf(node.left), textOf(node.right)];
    if (left === undefined && right === undefined) return undefined;
    return (left ?? placeholder(node.left)) + (right ?? placeholder(node.right));
  }
  return undefined;
}

const isPlus = (node: ts.Node): node is ts.BinaryExpression =>
  ts.isBinaryExpression(node) && node.operatorToken.kind === ts.SyntaxKind.PlusToken;

/** `{name}`, or the alternatives of a choice between texts: `{is|are}`. */
function placeholder(node: ts.Expression): string {
  const choices = choicesOf(node);
  return choices === undefined ? `{${nameOf(node)}}` : `{${choices.join('|')}}`;
}

function choicesOf(node: ts.Expression): string[] | undefined {
  if (ts.isParenthesizedExpression(node)) return choicesOf(node.expression);
  if (!ts.isConditionalExpression(node)) return undefined;
  return [node.whenTrue, node.whenFalse].flatMap(
    (branch) => textOf(branch) ?? choicesOf(branch) ?? `{${nameOf(branch)}}`,
  );
}

const GLOBAL = /^(Math|Object|Array|JSON|Buffer|Number)$/;

/** The noun of an expression: the path for `options.path` and for `shown(path)`. */
function nameOf(node: ts.Expression): string {
  if (ts.isIdentifier(node) || ts.isPrivateIdentifier(node)) return node.text;
  if (ts.isPropertyAccessExpression(node)) return node.name.text.replace('#', '');
  if (ts.isCallExpression(node)) {
    const [first] = node.arguments;
    const callee = node.expression;
    // `Math.round(seconds)` gives the seconds, and `names.join(', ')` gives the names.
    if (ts.isPropertyAccessExpression(callee) && !GLOBAL.test(callee.expression.getText())) {
      return nameOf(callee.expression);
    }
    return first === undefined ? nameOf(callee) : nameOf(first);
  }
  if (ts.isStringLiteral(node) || ts.isNumericLiteral(node)) return node.text;
  if (ts.isElementAccessExpression(node) || ts.isAwaitExpression(node)) {
    return nameOf(node.expression);
  }
  if (ts.isNonNullExpression(node) || ts.isAsExpression(node)) return nameOf(node.expression);
  if (ts.isParenthesizedExpression(node)) return nameOf(node.expression);
  if (ts.isBinaryExpression(node)) return nameOf(node.left);
  if (ts.isArrayLiteralExpression(node)) return node.elements.map(nameOf).join(' ');
  return '…';
}

/** The expressions inside of a text. Choices within a line are not returned again. */
function placeholdersOf(node: ts.Node): ts.Expression[] {
  if (ts.isTemplateExpression(node)) {
    return node.templateSpans.flatMap(({ expression }) => inside(expression));
  }
  if (isPlus(node)) return [node.left, node.right].flatMap(placeholdersOf);
  if (ts.isParenthesizedExpression(node)) return placeholdersOf(node.expression);
  return ts.isStringLiteralLike(node) ? [] : [node as ts.Expression];
}

function inside(node: ts.Expression): ts.Expression[] {
  if (ts.isParenthesizedExpression(node)) return inside(node.expression);
  if (!ts.isConditionalExpression(node)) return [node];
  const branches = [node.whenTrue, node.whenFalse];
  return branches.flatMap((branch) =>
    textOf(branch) === undefined ? inside(branch) : placeholdersOf(branch),
  );
}

/** A single word for users: an error's message or a description, but no code in capitals. */
function isShown(node: ts.Node): boolean {
  const { parent } = node;
  if (!ts.isStringLiteralLike(node) || !/^[a-z]/.test(node.text)) return false;
  if (!ts.isNewExpression(parent) && !ts.isCallExpression(parent)) return false;
  const callee = parent.expression;
  return SHOWN.test(ts.isPropertyAccessExpression(callee) ? callee.name.text : callee.getText());
}
