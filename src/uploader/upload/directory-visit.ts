import { joinPath } from '../../base/index.ts';
import type { Policy } from '../../snapshot/index.ts';
import type { IgnoreRules } from '../listing/ignore-rules.ts';
import type { SourceEntry } from '../listing/listing.ts';
import type { OpenDirectory } from './open-tree.ts';
import type { EntryOutcomes } from './entry-outcomes.ts';
import type { PreviousDirectory, PreviousEntries } from '../listing/previous-entries.ts';

/** A directory to store: its path, and its previous versions. */
export interface Visit {
  readonly path: string | Uint8Array;
  /** Relative to the root of the snapshot, '' for the root. */
  readonly relative: string;
  readonly previous: readonly PreviousDirectory[];
  readonly rules: IgnoreRules;
  readonly attributes: Pick<SourceEntry, 'mtimeNs' | 'device' | 'sizeBytes'>;
}

/** Common data of a directory's entries while they are scheduled. */
export interface Started {
  readonly visit: Visit;
  readonly policy: Policy;
  readonly previous: PreviousEntries;
  readonly rules: IgnoreRules;
  readonly outcomes: EntryOutcomes;
  readonly open: OpenDirectory;
}

export function visitBelow(
  visit: Visit,
  child: SourceEntry,
  rules: IgnoreRules,
  previous: readonly PreviousDirectory[],
): Visit {
  const path = joinPath(visit.path, child.rawName);
  return { path, relative: relativePath(visit, child.name), previous, rules, attributes: child };
}

export function relativePath(visit: Visit, name: string): string {
  return visit.relative === '' ? name : `${visit.relative}/${name}`;
}
