import * as fs from 'node:fs';
import { join } from 'node:path';
import { missingLines, partsOf, type Statement } from './page-parts.ts';
import type { Said, ShellSession } from './shell-session.ts';

const ROOT = new URL('../../../', import.meta.url).pathname;

export const readPage = (page: string): string => fs.readFileSync(join(ROOT, page), 'utf8');

/** Additions to a command of a page. */
export interface Step {
  /** Creates the state that the page assumes. */
  readonly before?: () => unknown;
  /** Checks the state that the page promises. */
  readonly after?: (said: Said) => unknown;
  /** For a command that asks on a terminal: its question, and the keys to type. */
  readonly answer?: readonly [question: string, keys: string];
  /** For a command that runs until it is stopped: the output to wait for. */
  readonly until?: string;
  /** An exit code besides 0 that is no failure. */
  readonly code?: number;
  /** For a command that runs until it is stopped: actions meanwhile. */
  readonly meanwhile?: () => Promise<void>;
}

export interface PageScript {
  readonly page: string;
  /** Keyed by the beginning of the command. The longest match counts. Each must be on the page. */
  readonly steps?: Readonly<Record<string, Step>>;
  /** Texts of the page that differ here, such as directories. Each must be on the page. */
  readonly replace?: Readonly<Record<string, string | (() => string)>>;
}

/**
 * Commands that are not run, by their beginning, with the reason. A test fails if such a command is
 * on no page any more.
 */
export const NOT_RUN: Readonly<Record<string, string>> = {
  'docker build':
    'there is no Docker; test/delivery/image.test.ts makes the image of the same Dockerfile',
  'docker push': 'there is no registry',
  'npm ci && npm test': 'it runs this test',
  'npm run bench': 'measures for many minutes; CI runs each scenario with --quick',
  'node bench/': 'measures for many minutes',
  'helm upgrade velero': "Velero's chart is in a repository of the network",
};

export const isRun = ({ text }: Statement): boolean =>
  !Object.keys(NOT_RUN).some((beginning) => text.startsWith(beginning));

/** Runs a page from top to bottom. Throws with the first line that does not match the result. */
export async function followPage(script: PageScript, session: ShellSession): Promise<void> {
  const { page, steps = {}, replace = {} } = script;
  const used = new Set<string>();
  const here = (text: string): string => {
    let own = text;
    for (const [from, to] of Object.entries(replace)) {
      if (!own.includes(from)) continue;
      used.add(from);
      own = own.replaceAll(from, typeof to === 'string' ? to : to());
    }
    return own;
  };
  let printed = '';
  let last = 'statement';
  for (const part of partsOf(readPage(page))) {
    const place = `${page}:${part.line}`;
    if (part.kind === 'output') {
      const missing = missingLines(here(part.text), printed);
      if (missing.length > 0) {
        throw new Error(
          `${place}: shown and not printed:\n${missing.join('\n')}\nprinted was:\n${printed}`,
        );
      }
    } else if (isRun(part)) {
      if (last === 'output') printed = '';
      const key = Object.keys(steps)
        .filter((beginning) => part.text.startsWith(beginning))
        .sort((a, b) => b.length - a.length)[0];
      if (key !== undefined) used.add(key);
      const step = key === undefined ? {} : (steps[key] ?? {});
      try {
        await step.before?.();
        const said = await typed(here(part.text), step, session);
        printed += said.out + said.err;
        await step.after?.(said);
      } catch (cause) {
        const text = `${place}: ${part.text}\n${(cause as Error).message}\nprinted was:\n${printed}`;
        throw new Error(text, { cause });
      }
    }
    last = part.kind;
  }
  const left = [...Object.keys(steps), ...Object.keys(replace)].filter((key) => !used.has(key));
  if (left.length > 0) throw new Error(`${page} has no command any more with: ${left.join(', ')}`);
}

async function typed(text: string, step: Step, session: ShellSession): Promise<Said> {
  if (step.answer) return session.answer(text, ...step.answer);
  if (step.until) return session.stop(text, step.until, step.meanwhile);
  return session.run(
    step.code === undefined ? text : `${text.replace(/ +#.*$/, '')} || [ $? = ${step.code} ]`,
  );
}
