/** The rules of plain English that a program can check. A reader has to judge the rest. */
import { type Kind, longLines, type Sentence, sentencesOf } from './texts.ts';

export interface Rule {
  readonly name: string;
  /** What to do about a finding. */
  readonly hint: string;
  readonly kinds: readonly Kind[];
  readonly finds: (text: string) => boolean;
}

export interface Finding {
  readonly file: string;
  readonly line: number;
  readonly kind: Kind;
  readonly rule: string;
  readonly text: string;
}

export const WORDS_MAX = 25;
/** Sentences above this length are a figure of their own in the report. */
export const LONG_WORDS = 30;
const COMMAS_MAX = 3;
const CELL_WORDS_MAX = 15;
export const COLUMNS_MAX = 100;

export const wordsIn = (text: string): number => text.match(/[A-Za-z][\w'’-]*/g)?.length ?? 0;
/** Commas, colons and semicolons, except within a list of names. */
export const commasIn = (text: string): number =>
  text.replaceAll(/\bCODE(?:,? (?:and |or )?CODE\b)+/g, 'CODE').match(/[,;:](?=\s)/g)?.length ?? 0;

const PROSE: readonly Kind[] = ['comment', 'page'];
const SENTENCES: readonly Kind[] = ['comment', 'page', 'help', 'message'];

const matches =
  (...patterns: readonly RegExp[]) =>
  (text: string): boolean =>
    patterns.some((pattern) => pattern.test(text));

const VERBS =
  "is|are|was|were|has|have|had|can|cannot|could|does|do|did|will|would|must|may|should|doesn't|isn't";
const SUBJECTS = 'it|they|he|nobody|somebody|someone|there|others|another|each|one|a|an|the|this';

/** A sentence counts once, under the first rule that finds something in it. */
export const RULES: readonly Rule[] = [
  {
    name: 'long-sentence',
    hint: `more than ${WORDS_MAX} words: make two sentences of it, or delete a clause`,
    kinds: SENTENCES,
    finds: (text) => wordsIn(text) > WORDS_MAX,
  },
  {
    name: 'many-commas',
    hint: `more than ${COMMAS_MAX} commas, colons and semicolons: one idea a sentence, or a list`,
    kinds: SENTENCES,
    finds: (text) => commasIn(text) > COMMAS_MAX,
  },
  {
    name: 'opening-word',
    hint: 'the first word refers to nothing yet: start with the thing that the sentence is about',
    kinds: PROSE,
    finds: matches(
      /^(Of|It|Those|Whoever|Whichever|Nobody|Nothing|Another|Others|Such|Neither)\b/,
      /^Ones?\b(?! (?:or|\w+) (?:of|more)\b)/,
      /^By (?!default\b|convention\b|then\b|hand\b|\w+ing\b)/,
    ),
  },
  {
    name: 'clause-as-noun',
    hint: 'a clause stands for a thing: use a noun ("what is not there": "the missing files")',
    kinds: SENTENCES,
    finds: (text) => !text.endsWith('?') && CLAUSE.test(text),
  },
  {
    name: 'where-for-if',
    hint: 'write "if", "when" or "because", not "where" or "as", for a condition or a reason',
    kinds: SENTENCES,
    finds: matches(
      /(?:^|[,;:] )(?:where|as) (?:it|they|that|this|there|one|nobody|nothing) /i,
      /\b(?:only|also|even|except|but) where\b/i,
    ),
  },
  {
    name: 'vague-pronoun',
    hint: 'say the noun: "the other snapshot", "our index", "a file that is too large"',
    kinds: SENTENCES,
    finds: matches(
      /\b(?:of (?:ours|theirs)|(?:this|that|such an?|the other) one)\b(?! of\b)/i,
      /\b(?:ones?|those) (?:that|which|who|whose|is|are|has|have|without)\b/i,
      /\b(?:and (?:the|its|their) like|the former|the latter|and such)\b/i,
    ),
  },
  {
    name: 'translated',
    hint: 'reads as translated word by word: use the verb of the field (retry, skip, delete, own, match)',
    kinds: SENTENCES,
    finds: matches(
      /\b(?:is|are|was|were) (?:told (?:of|from|by)|so\b|looked (?:for|after|at)|gone (?:through|into)|made anew|of no use|left alone|asked for|seen to|had)\b/i,
      /\b(?:tells?|say|says|said|told) (?:of|it) (?:an?|the|each|all|which|what)\b/i,
      /\b(?:anew|in vain|by halves|to be had|has it that|as it is now|and (?:so )?the reverse|no more than that|that there (?:is|are) (?:no|any))\b/i,
      /\b(?:whereof|thereby|hence|thereof|wherein|whereby)\b/i,
      /\b(?:of|by|to|from|than|with) wh(?:ich|om)\b/i,
    ),
  },
  {
    name: 'long-cell',
    hint: `a cell of a table has more than ${CELL_WORDS_MAX} words: shorten it, or use a paragraph`,
    kinds: ['table'],
    finds: (text) => wordsIn(text) > CELL_WORDS_MAX,
  },
];

const CLAUSE = new RegExp(
  `\\b(?:what|whoever|whatever|whichever) (?:${VERBS}|${SUBJECTS})\\b`,
  'i',
);

const LONG_LINE = 'long-line';

export const hintOf = (rule: string): string =>
  RULES.find(({ name }) => name === rule)?.hint ??
  `a comment's line has more than ${COLUMNS_MAX} columns: break it`;

/** All findings of a file, in the order of its lines. */
export function findingsIn(file: string, text: string): Finding[] {
  const sentences = sentencesOf(file, text);
  const found = sentences.flatMap((sentence): Finding[] => {
    const rule = ruleBrokenBy(sentence);
    return rule === undefined ? [] : [{ file, rule: rule.name, ...sentence }];
  });
  if (/\.md$|\.txt$/.test(file)) return found;
  const lines = text.split('\n');
  for (const line of longLines(text, COLUMNS_MAX)) {
    const words = lines[line - 1]?.trim() ?? '';
    found.push({ file, line, kind: 'comment', rule: LONG_LINE, text: words });
  }
  return found.sort((a, b) => a.line - b.line);
}

export function ruleBrokenBy({ kind, text }: Pick<Sentence, 'kind' | 'text'>): Rule | undefined {
  if (wordsIn(text) < 3) return undefined;
  return RULES.find(({ kinds, finds }) => kinds.includes(kind) && finds(text));
}
