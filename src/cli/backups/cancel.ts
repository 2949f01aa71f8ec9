import { CodedError, isCode } from '../../base/index.ts';
import { type KubeObject, waitFor } from '../../kube/index.ts';
import { CANCEL_ANNOTATION } from '../../server/index.ts';
import type { ClusterFlags } from '../cluster.ts';
import { printText } from '../output/streams.ts';
import { cancelInPlace, isClaimName } from './in-place/cancel-in-place.ts';
import { findNamed, isRunOver, type Noun, phaseOf } from './noun.ts';
import { withSession } from './session.ts';

export interface CancelFlags extends ClusterFlags {
  wait?: boolean;
}

const WAIT_MS = 600_000;

/**
 * Cancels a backup or restore through the server, or a restore in place through the node-agents.
 * Throws `NO_BACKUP`, `NO_RESTORE`, `RUN_GONE`, and for an ended run `BACKUP_OVER` or
 * `RESTORE_OVER`.
 */
export async function cancelNamed(noun: Noun, name: string, flags: CancelFlags): Promise<void> {
  const { word, resource } = noun;
  await withSession(flags, async (session) => {
    const { client, namespace, signal } = session;
    const ref = { namespace, name };
    if (word === 'restore') {
      // A Restore takes precedence over a DataDownload of the same name.
      const isRestore = !isClaimName(name) && (await client.find(resource, ref, { signal }));
      if (!isRestore && (await cancelInPlace(name, flags, session))) return;
    }
    const object = await findNamed(noun, name, session);
    if (isRunOver(object)) {
      const code = word === 'backup' ? 'BACKUP_OVER' : 'RESTORE_OVER';
      throw new CodedError(code, `${word} ${name} has ended already: ${phaseOf(object)}`);
    }
    const annotations = { [CANCEL_ANNOTATION]: 'true' };
    // Only this object: a later one may have got its name.
    const { uid } = object.metadata;
    try {
      await client.patch(resource, ref, { metadata: { uid, annotations } }, { signal });
    } catch (error) {
      if (!isCode(error, 'KUBE_NOT_FOUND', 'KUBE_CONFLICT')) throw error;
      const text = `${word} ${name} was deleted before it could be told to end`;
      throw new CodedError('RUN_GONE', text, { cause: error });
    }
    if (flags.wait !== true) {
      printText(`${word} ${name} is told to end; see "longshore ${word} get ${name}"\n`);
      return;
    }
    const look = (now: KubeObject | undefined): string | undefined => {
      if (now?.metadata.uid !== object.metadata.uid) return 'deleted';
      return isRunOver(now) ? phaseOf(now) : undefined;
    };
    try {
      const end = await waitFor(client, resource, ref, look, { timeoutMs: WAIT_MS, signal });
      printText(`${word} ${name} has ended: ${end}\n`);
    } catch (error) {
      if (!isCode(error, 'WAIT_TIMEOUT')) throw error;
      const text = `${word} ${name} has not ended yet: does a server run that makes ${word}s (longshore server)?`;
      throw new CodedError('WAIT_TIMEOUT', text, { cause: error });
    }
  });
}
