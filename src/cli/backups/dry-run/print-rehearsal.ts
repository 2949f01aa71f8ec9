import type { KubeObject, Tone } from '../../../kube/index.ts';
import type { RehearsalResult, RehearsedItem, RehearsalNote } from '../../../restore/index.ts';
import { ExitCode } from '../../exit.ts';
import { writeOutput } from '../../output/streams.ts';
import {
  type DocumentFormat,
  printable,
  printJson,
  setDocumentFormat,
} from '../../output/terminal.ts';
import { paint } from '../colours.ts';
import { rehearse } from './rehearse.ts';
import type { Session } from '../session.ts';

const TONES: Readonly<Record<RehearsedItem['outcome'], Tone>> = {
  created: 'good',
  updated: 'doubtful',
  skipped: 'plain',
  failed: 'bad',
};
/** Maximum number of different notes without an item. The rest is only counted. */
const SENTENCES_MAX = 1000;

/** Prints the result, line by line or as one document. Sets the exit code. */
export async function printRehearsal(
  restore: object,
  session: Session,
  form: DocumentFormat | undefined,
): Promise<void> {
  const items: RehearsedItem[] = [];
  const counts = { created: 0, updated: 0, skipped: 0, failed: 0 };
  const besides = new Besides();
  const lines = new Lines();
  const { unchecked, warnings, errors } = await rehearse(restore as KubeObject, session, {
    item: (item) => {
      counts[item.outcome]++;
      if (form === undefined) lines.add(itemLines(item));
      else items.push(item);
    },
    note: (text, level) => {
      besides.add(text, level);
    },
  });
  if (form === undefined) {
    for (const { level, text, count } of besides.list()) {
      const often = count > 1 ? ` (${count} times)` : '';
      const word = level === 'info' ? 'left out' : level;
      lines.add(
        `${paint(word.padEnd(WORD_CHARS), toneOfLevel(level))} ${printable(text)}${often}\n`,
      );
    }
    lines.add(summaryOf(counts, { unchecked, warnings, errors }));
    await lines.end();
  } else {
    await setDocumentFormat(form);
    printJson({
      items,
      besides: besides.list(),
      summary: { ...counts, unchecked, warnings, errors },
    });
  }
  if (errors > 0) process.exitCode = ExitCode.partly;
}

const WORD_CHARS = 8;

function itemLines({ outcome, kind, namespace, name, restoredAs, notes }: RehearsedItem): string {
  const what = `${kind.slice(kind.lastIndexOf('/') + 1)} ${namespace === '' ? '' : `${namespace}/`}${name}`;
  const as = restoredAs === undefined ? '' : ` as ${restoredAs}`;
  const head = `${paint(outcome.padEnd(WORD_CHARS), TONES[outcome])} ${printable(`${what}${as}`)}\n`;
  return [head, ...notes.map(noteLine)].join('');
}

const noteLine = ({ level, text }: RehearsalNote): string => {
  const word = level === 'info' ? '' : `${paint(level, toneOfLevel(level))}: `;
  return `${' '.repeat(WORD_CHARS + 3)}${word}${printable(text)}\n`;
};

const toneOfLevel = (level: RehearsalNote['level']): Tone =>
  level === 'error' ? 'bad' : level === 'warning' ? 'doubtful' : 'plain';

function summaryOf(
  { created, updated, skipped, failed }: Readonly<Record<RehearsedItem['outcome'], number>>,
  { unchecked, warnings, errors }: Pick<RehearsalResult, 'unchecked' | 'warnings' | 'errors'>,
): string {
  const told = `would be created: ${created}, updated: ${updated}, skipped: ${skipped}, failed: ${failed}`;
  const more =
    unchecked === 0
      ? ''
      : `; of these ${unchecked} are in namespaces or of kinds that are not there yet, so that the API server could not be asked about them`;
  const phase = errors > 0 ? 'PartiallyFailed' : 'Completed';
  return `${told}${more}\nThe restore would be ${phase} (errors: ${errors}, warnings: ${warnings}).\nNothing was changed. Plugins of others were not asked, and no volume was touched.\n`;
}

/** Notes without an item, each once. */
class Besides {
  readonly #counts = new Map<string, { level: RehearsalNote['level']; count: number }>();

  add(text: string, level: RehearsalNote['level']): void {
    const isFull = this.#counts.size >= SENTENCES_MAX && !this.#counts.has(text);
    const key = isFull ? 'more that is not listed here' : text;
    const known = this.#counts.get(key);
    if (known) known.count++;
    else this.#counts.set(key, { level, count: 1 });
  }

  list(): {
    readonly level: RehearsalNote['level'];
    readonly text: string;
    readonly count: number;
  }[] {
    return [...this.#counts].map(([text, { level, count }]) => ({ level, text, count }));
  }
}

/** Writes lines in pieces of 32 KiB, because there may be hundreds of thousands. */
class Lines {
  #text = '';
  #writing: Promise<void> = Promise.resolve();

  add(text: string): void {
    this.#text += text;
    if (this.#text.length > 32_768) this.#flush();
  }

  #flush(): void {
    const text = this.#text;
    this.#text = '';
    this.#writing = this.#writing.then(() => writeOutput(text));
    // The error is reported at the end.
    this.#writing.catch(() => undefined);
  }

  async end(): Promise<void> {
    this.#flush();
    await this.#writing;
  }
}
