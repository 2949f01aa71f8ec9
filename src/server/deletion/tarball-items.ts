import {
  CONTENT_LIMITS,
  type ItemPlace,
  parseItemPath,
  readTarball,
  ScratchFile,
} from '../../archive/index.ts';
import { isCode, messageOf, redactAndCut } from '../../base/index.ts';
import type { Resolved } from '../../backup/index.ts';
import type { Backup, KubeObject } from '../../kube/index.ts';
import type { DeletionFailures } from './deletion-failures.ts';
import type { DeleteAction } from './contract.ts';
import { CALL_MS_MAX, within } from './call-time-limit.ts';

export interface ItemPass {
  readonly backup: Backup;
  /** Compressed. The caller owns it. */
  readonly tarball: ScratchFile;
  readonly actions: readonly Resolved<DeleteAction>[];
  readonly attempts: DeletionFailures;
  readonly signal: AbortSignal;
  /** Types of items that `onItem` receives, too. */
  readonly types: ReadonlySet<string>;
  readonly onItem: (type: string, item: KubeObject) => void;
}

/** A missing plugin would fail for each of 300,000 items. Our choice. */
const FAILURES_MAX = 10;

/**
 * Calls the actions for each item of a tarball, in its order. Holds a single item in memory. Like
 * Velero it uses only the copy of an item whose path names no version. Like Velero it passes a
 * repeated item twice. A failure is reported, and the next item follows. Throws `DAMAGED_ARCHIVE`.
 */
export async function eachItem(pass: ItemPass): Promise<void> {
  const { tarball, signal, types, onItem, backup } = pass;
  const asked = pass.actions.map((resolved) => new Asked(resolved));
  const key = `${backup.metadata.name}.tar.gz`;
  const limits = { ...CONTENT_LIMITS, mayRepeat: true };
  for await (const { path, bytes } of readTarball(tarball.read(), key, limits)) {
    signal.throwIfAborted();
    const place = parseItemPath(path);
    if (!place || place.version !== undefined) continue;
    const { groupResource: type } = place;
    const isOurs = types.has(type);
    if (!isOurs && !asked.some((each) => each.mayApply(place))) continue;
    const item = parsed(bytes);
    if (!item) {
      pass.attempts.say(
        `error invoking delete item actions: ${path} of the tarball is no object: what it stands for is not deleted`,
      );
      continue;
    }
    if (isOurs) {
      try {
        onItem(type, item);
      } catch (error) {
        // A malformed item must not stop the pass.
        pass.attempts.fail(`error invoking delete item actions: ${path} of the tarball`, error);
      }
    }
    for (const each of asked) await each.ask(place, item, pass);
  }
}

function parsed(bytes: Buffer): KubeObject | undefined {
  try {
    const item = JSON.parse(bytes.toString('utf8')) as Partial<KubeObject> | null;
    const metadata: unknown = item?.metadata;
    return typeof metadata === 'object' && metadata !== null ? (item as KubeObject) : undefined;
  } catch {
    return undefined;
  }
}

/** An action with its failures in a row. */
class Asked {
  readonly #resolved: Resolved<DeleteAction>;
  #failures = 0;

  constructor(resolved: Resolved<DeleteAction>) {
    this.#resolved = resolved;
  }

  /** Decides by the path alone, so unneeded items are not parsed. */
  mayApply({ groupResource, namespace, name }: ItemPlace): boolean {
    const { action, applies } = this.#resolved;
    if ((action.appliesTo.selector ?? '') !== '') return true;
    const metadata = { namespace, name, uid: '', resourceVersion: '' };
    return applies(groupResource, { metadata } as KubeObject);
  }

  async ask(place: ItemPlace, item: KubeObject, pass: ItemPass): Promise<void> {
    const { action, applies } = this.#resolved;
    if (this.#failures >= FAILURES_MAX || !applies(place.groupResource, item)) return;
    const { attempts, signal, backup } = pass;
    const { groupResource, namespace, name } = place;
    const where = namespace === '' ? name : `${namespace}/${name}`;
    const what = `error invoking delete item actions: ${action.name} of ${groupResource} ${where}`;
    try {
      await attempts.patiently(what, () =>
        within(signal, CALL_MS_MAX, (own) => action.execute(item, backup, { signal: own })),
      );
      this.#failures = 0;
    } catch (error) {
      if (signal.aborted || isCode(error, 'LEADERSHIP_LOST')) throw error;
      attempts.fail(what, error);
      if (++this.#failures < FAILURES_MAX) return;
      attempts.say(
        `error invoking delete item actions: ${action.name} has failed ${FAILURES_MAX} times in a row, and is not asked about the other items: ${redactAndCut(messageOf(error))}`,
      );
    }
  }
}
