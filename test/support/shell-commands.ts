/** A command of a shell line: its words, without quotes and redirections. */
export type ShellCommand = readonly string[];

const OPERATORS = ['&&', '||', ';;', '|&', '|', ';', '&', '(', ')', '{', '}'];
const KEYWORDS = [
  'if',
  'then',
  'else',
  'fi',
  'for',
  'do',
  'done',
  'while',
  'until',
  '!',
  'time',
  'case',
  'esac',
];

/**
 * All simple commands of a shell text, including those within `$(…)`. Supports the syntax of the
 * docs, such as quotes, comments and here-documents. Throws an `Error` for an unclosed quote or
 * parenthesis.
 */
export function shellCommands(text: string): ShellCommand[] {
  const commands: ShellCommand[] = [];
  let words: string[] = [];
  let at = 0;
  const end = (): void => {
    const own = withoutStart(words);
    if (own.length > 0) commands.push(own);
    words = [];
  };
  while (at < text.length) {
    const rest = text.slice(at);
    const blank = /^(?:[ \t]|\\\n)+/.exec(rest)?.[0];
    const comment = /^#[^\n]*/.exec(rest)?.[0];
    const hereDocument = /^<<-?\s*(['"]?)(\w+)\1([^\n]*)\n(?:.*?\n)??\s*\2(?=\n|$)/s.exec(rest);
    const redirection = /^\d?(?:>>|>&|<&|&>|>|<)(?!\()\s*/.exec(rest)?.[0];
    const operator = OPERATORS.find((each) => rest.startsWith(each));
    if (blank !== undefined) at += blank.length;
    else if (comment !== undefined) at += comment.length;
    else if (hereDocument) at += hereDocument[0].length;
    else if (redirection !== undefined) {
      at += redirection.length;
      // Skips the target of a redirection.
      at += wordAt(text, at, commands).length;
    } else if (rest.startsWith('\n') || operator !== undefined) {
      at += operator?.length ?? 1;
      end();
    } else {
      const { word, length } = wordAt(text, at, commands);
      words.push(word);
      at += length;
    }
  }
  end();
  return commands;
}

/** Removes variables before the command, and shell keywords. */
function withoutStart(words: readonly string[]): string[] {
  const from = words.findIndex(
    (word) => !/^[A-Za-z_]\w*=/.test(word) && !KEYWORDS.includes(word) && word !== 'export',
  );
  return from < 0 ? [] : words.slice(from);
}

/** Reads one word from a position. Adds commands within it to `commands`. */
function wordAt(
  text: string,
  from: number,
  commands: ShellCommand[],
): { word: string; length: number } {
  let word = '';
  let at = from;
  while (at < text.length) {
    const char = text[at] ?? '';
    if (text.startsWith('$(', at) || text.startsWith('<(', at)) {
      const close = closingOf(text, at + 2);
      commands.push(...shellCommands(text.slice(at + 2, close)));
      word += '$()';
      at = close + 1;
    } else if (/[\s|;&()<>]/.test(char)) break;
    else if (char === '\\') {
      word += text[at + 1] ?? '';
      at += 2;
    } else if (char === "'") {
      const close = text.indexOf("'", at + 1);
      if (close < 0) throw new Error(`a quote has no end: ${text.slice(at, at + 60)}`);
      word += text.slice(at + 1, close);
      at = close + 1;
    } else if (char === '"') {
      const inner = /^"((?:[^"\\]|\\.)*)"/s.exec(text.slice(at));
      if (!inner) throw new Error(`a quote has no end: ${text.slice(at, at + 60)}`);
      const [whole, body = ''] = inner;
      for (const [, nested = ''] of body.matchAll(/\$\(([^()]*)\)/g)) {
        commands.push(...shellCommands(nested));
      }
      word += body.replaceAll(/\\(["\\$`])/g, '$1');
      at += whole.length;
    } else {
      word += char;
      at++;
    }
  }
  if (at === from) throw new Error(`there is no word at: ${text.slice(at, at + 60)}`);
  return { word, length: at - from };
}

function closingOf(text: string, from: number): number {
  let depth = 1;
  for (let at = from; at < text.length; at++) {
    if (text[at] === '(') depth++;
    else if (text[at] === ')' && --depth === 0) return at;
  }
  throw new Error(`a parenthesis has no end: ${text.slice(from, from + 60)}`);
}
