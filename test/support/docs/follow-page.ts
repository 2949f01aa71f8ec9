import * as fs from 'node:fs';
import { join } from 'node:path';
import { missingLines, partsOf, type Statement } from './page-parts.ts';
import type { Said, ShellSession } from './shell-session.ts';

const ROOT = new URL('../../../', import.meta.url).pathname;

export const readPage = (page: string): string => fs.readFileSync(join(ROOT, page), 'utf8');

/** What belongs to a command of a page and does not stand there. */
export interface Step {
  /** Makes what the page takes for granted. */
  readonly before?: () => unknown;
  /** Whether what the page promises is so. */
  readonly after?: (said: Said) => unknown;
  /** A command that asks on a terminal: its question, and what is typed. */
  readonly answer?: readonly [question: string, keys: string];
  /** A command that runs until it is stopped: what it prints before. */
  readonly until?: string;
  /** The exit code that it may have beside 0, where that is no failure. */
  readonly code?: number;
  /** Of a command that runs until it is stopped: what is done meanwhile. */
  readonly meanwhile?: () => Promise<void>;
}

export interface PageScript {
  readonly page: string;
  /**
   * By the beginning of the command; of two that fit the longer one counts. Each has to be there.
   */
  readonly steps?: Readonly<Record<string, Step>>;
  /** Texts of the page that are other ones here, such as directories. Each has to be there. */
  readonly replace?: Readonly<Record<string, string | (() => string)>>;
}

/**
 * Commands that are not run, by their beginning, and why. A test fails where one of these is in no
 * page any more.
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

/** Types a page from top to bottom. Throws with the line of the page that is not as it says. */
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
