import type { DirectoryEntry } from '../../snapshot/index.ts';
import { type AttributesNotSet, describeNotSet, type EntryFailure } from '../../uploader/index.ts';
import { countOf } from '../output/numbers.ts';
import { ExitCode } from '../exit.ts';
import { printable } from '../output/terminal.ts';

/**
 * Limit on a terminal. The log has all entries with --verbose, and --json up to {@link HELD_MAX}.
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

  /** The first lines for a person. Empty if all entries were read, or all failures are ignored. */
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

/** The parts of the source that a snapshot lacks. Restores cannot see them otherwise. */
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

/** Warns on stderr of parts missing from the snapshot, and sets the exit code. */
export function warnOfMissing(root: DirectoryEntry): void {
  for (const text of describeMissing(root)) process.stderr.write(`longshore: ${text}\n`);
  if (root.summary?.incomplete !== undefined) process.exitCode = ExitCode.partly;
}

/** Warns of attributes that could not be restored, and sets the exit code. */
export function warnOfNotSet(notSet: AttributesNotSet): void {
  if (notSet.entries === 0) return;
  const count = countOf(notSet.entries, 'entries');
  const text = `${count} restored without all attributes: ${describeNotSet(notSet)} could not be set, because the system does not let this process set them`;
  const advice = notSet.owner > 0 ? '; use --no-owner if the owners need not come back' : '';
  process.stderr.write(`longshore: ${text}${advice}\n`);
  process.exitCode = ExitCode.partly;
}
