import type { DirectoryEntry } from '../snapshot/index.ts';
import { type AttributesNotSet, describeNotSet, type EntryFailure } from '../uploader/index.ts';
import { countOf } from './amounts.ts';
import { ExitCode } from './exit.ts';
import { printable } from './terminal.ts';

/**
 * What is shown on a terminal; the log has all of them with --verbose, and --json up to
 * {@link HELD_MAX}.
 */
const SHOWN_MAX = 10;
const HELD_MAX = 100_000;

/** Entries that a backup could not read, by name. */
export class UnreadEntries {
  readonly #held: EntryFailure[] = [];
  #count = 0;
  #errors = 0;

  add(failure: EntryFailure): void {
    this.#count++;
    if (!failure.ignored) this.#errors++;
    if (this.#held.length < HELD_MAX) this.#held.push(failure);
  }

  /**
   * The first few lines for a person; none when every entry could be read, or what could not is
   * ignored.
   */
  describe(): string[] {
    if (this.#errors === 0) return [];
    const shown = this.#held.filter(({ ignored }) => !ignored).slice(0, SHOWN_MAX);
    const lines = shown.map(
      ({ error: { path, error } }) => `${printable(path)}: ${printable(error)}`,
    );
    const more = this.#errors - shown.length;
    return [
      `longshore: ${countOf(this.#errors, 'entries')} could not be read: ${lines[0] ?? 'see the log'}`,
      ...lines.slice(1).map((line) => `  ${line}`),
      ...(more > 0 ? [`  and ${more} more; --verbose names them all`] : []),
    ];
  }

  /** For `--json`. */
  document(): object {
    return {
      unread: this.#held.map(({ error: { path, error }, ignored }) => ({ path, error, ignored })),
      unreadNotListed: this.#count - this.#held.length,
    };
  }
}

/**
 * What a snapshot never held of its source, in sentences for whoever restores or verifies it: it
 * looks whole without.
 */
function describeMissing({ summary }: DirectoryEntry): string[] {
  const { incomplete, numFailed = 0 } = summary ?? {};
  return [
    ...(incomplete === undefined
      ? []
      : [
          `the snapshot is incomplete (${printable(incomplete)}): whatever its backup had not reached is missing from it`,
        ]),
    ...(numFailed === 0
      ? []
      : [`the snapshot lacks ${countOf(numFailed, 'entries')} that the backup could not read`]),
  ];
}

/**
 * Says on stderr what the snapshot does not hold, and has the process end with the code for that.
 */
export function warnOfMissing(root: DirectoryEntry): void {
  for (const text of describeMissing(root)) process.stderr.write(`longshore: ${text}\n`);
  if (root.summary?.incomplete !== undefined) process.exitCode = ExitCode.partly;
}

/**
 * Says on stderr what restored entries lack, and has the process end with the code for that. The
 * log names the first.
 */
export function warnOfNotSet(notSet: AttributesNotSet): void {
  if (notSet.entries === 0) return;
  const count = countOf(notSet.entries, 'entries');
  const text = `${count} restored without all attributes: ${describeNotSet(notSet)} could not be set, because the system does not let this process set them`;
  const advice = notSet.owner > 0 ? '; use --no-owner if the owners need not come back' : '';
  process.stderr.write(`longshore: ${text}${advice}\n`);
  process.exitCode = ExitCode.partly;
}
