import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { BackupArchive } from '../../../archive/index.ts';
import { CodedError } from '../../../base/index.ts';
import { identityOfStored } from '../../../item-operations/index.ts';
import {
  CONFIG_MAPS,
  DEPLOYMENTS,
  Discovery,
  type KubeObject,
  type Restore,
} from '../../../kube/index.ts';
import {
  type RehearsalResult,
  type RehearsedItem,
  rehearseRestore,
  ResourceModifiers,
  validateRestore,
} from '../../../restore/index.ts';
import { inPlaceHindrance } from '../../../exposer/index.ts';
import { RehearsedRun } from '../../../server/index.ts';
import { parsePolicyConfigMap } from '../../../volume-policy/index.ts';
import { backupServerOf } from '../../policy/check-server.ts';
import { VERSION } from '../../version.ts';
import { restorePoliciesOf } from '../../../server/compose/index.ts';
import { withBucketOf } from '../bucket.ts';
import { BACKUP } from '../noun.ts';
import type { Session } from '../session.ts';

/** Receives the results of a rehearsed restore, item by item. */
export interface RehearsalReport {
  item(item: RehearsedItem): void;
  note(text: string, level: 'info' | 'warning' | 'error'): void;
}

/** The server's defaults. */
const SERVER_DEPLOYMENT = 'longshore-server';
const OPERATION_TIMEOUT = '4h0m0s';

/**
 * Rehearses a Restore without creating it. Validation, contents of the backup and modifiers are the
 * server's code. The API server is asked by dry runs. Throws `NOT_VALID` with all reasons, and
 * errors of the API server and the bucket.
 */
export async function rehearse(
  given: KubeObject,
  session: Session,
  report: RehearsalReport,
): Promise<RehearsalResult> {
  const { client, namespace, signal } = session;
  const { hasCsi, defaultModifiers } = await backupServerOf(client, namespace, signal);
  const {
    restore: valid,
    errors,
    backup,
  } = await validateRestore(
    given as Restore,
    {
      client,
      itemOperationTimeout: OPERATION_TIMEOUT,
      defaultModifiers,
      readPolicies: restorePoliciesOf,
      readModifiers: (config) => void ResourceModifiers.fromConfigMap(config),
    },
    signal,
  );
  if (errors.length > 0 || !backup) {
    const text = `the server would refuse this restore: ${errors.join('; ')}`;
    throw new CodedError('NOT_VALID', text);
  }
  const restore = asIfMade(valid);
  const directory = mkdtempSync(join(tmpdir(), 'longshore-rehearsal-'));
  try {
    return await withBucketOf(BACKUP, backup, session, async (bucket) => {
      const stored = await new BackupArchive(bucket).openOf(backup, { signal });
      stored.assertTrusted(backup);
      await using contents = await stored.openContents({ directory, signal });
      const identity = await identityOfStored(stored, signal);
      const { resourceModifier, resourcePolicy } = restore.spec;
      const policies =
        resourcePolicy &&
        parsePolicyConfigMap(
          await client.get(CONFIG_MAPS, { namespace, name: resourcePolicy.name }, { signal }),
        );
      const modifiers =
        resourceModifier &&
        ResourceModifiers.fromConfigMap(
          await client.get(CONFIG_MAPS, { namespace, name: resourceModifier.name }, { signal }),
        );
      const discovery = await Discovery.open(client, { signal });
      const run = await RehearsedRun.open({
        client,
        discovery,
        restore,
        backup: identity,
        items: contents,
        stored,
        signal,
        policies: policies ?? undefined,
        hasCsi,
        known: backup,
        helper: { image: () => serverImage(session), tag: VERSION },
        inPlaceHindrance: (download, asked) => inPlaceHindrance(client, download, asked),
      });
      return await rehearseRestore({
        client,
        discovery,
        restore,
        backup: identity,
        items: contents,
        signal,
        modifiers: modifiers ?? undefined,
        policies: policies ?? undefined,
        actions: run.actions,
        run,
        onItem: (item) => {
          report.item(item);
        },
        onNote: ({ level, text }, about) => {
          const { resource, namespace: space = '', name } = about ?? {};
          const item = [space, name].filter(Boolean).join('/');
          const what = [resource, item].filter(Boolean).join(' ');
          report.note(what === '' ? text : `${what}: ${text}`, level);
        },
      });
    });
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Actions name objects after the UID, and recognise objects of earlier restores by their age. */
function asIfMade(restore: Restore): Restore {
  const uid = randomUUID();
  const creationTimestamp = new Date().toISOString();
  return { ...restore, metadata: { ...restore.metadata, uid, creationTimestamp } };
}

/** The image with the program that waits in pods. */
async function serverImage({ client, namespace, signal }: Session): Promise<string> {
  const ref = { namespace, name: SERVER_DEPLOYMENT };
  const found = await client.find(DEPLOYMENTS, ref, { signal });
  return found?.spec.template.spec.containers[0]?.image ?? '';
}
