import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { CanceledError, CodedError, silentLogger, untilAborted } from '../../src/base/index.ts';
import { ApiServer } from '../../src/dev/index.ts';
import { OperationMap } from '../../src/item-operations/index.ts';
import {
  type Backup,
  connectToCluster,
  Discovery,
  type KubeClient,
  NAMESPACES,
  type NewObject,
} from '../../src/kube/index.ts';
import { BACKUP_RESOURCE } from '../../src/server/backups/backup-kind.ts';
import { backupOperationStore } from '../../src/server/operations/operation-stores.ts';
import {
  FileWriters,
  FinalizerController,
  OperationsController,
  RestoreController,
  RestoreFinalizerController,
  RestoreLocations,
  RestoreOperationsController,
  restoreOperationStore,
  SharedBackups,
  SharedRestores,
} from '../../src/server/index.ts';
import { UnderWayNotes } from '../../src/server/backups/running-backups.ts';
import { RESTORE_RESOURCE, UNPUBLISHED } from '../../src/server/restores/restore-kind.ts';
import { tempDirectory } from '../support/kopia.ts';
import { MemoryBucket } from '../support/memory-bucket.ts';
import { openLost } from './backups/support/lost.ts';

const scratch = tempDirectory('hanging');
/** More than any controller has workers. */
const MANY = 20;
const FINALIZER = 'restores.velero.io/external-resources-finalizer';
const ends: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});

interface Place {
  readonly client: KubeClient;
  readonly signal: AbortSignal;
  readonly buckets: { open(location: string, signal: AbortSignal): Promise<never> };
}

const never = (): never => {
  throw new Error('not asked here');
};
const noSession = () => Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'no plugins here'));

/** Restores of several backups in the location `hangs`, and then one in the location `good`. */
async function restoresIn(client: KubeClient, status: object, more: object = {}): Promise<void> {
  for (let i = 0; i <= MANY; i++) {
    const storageLocation = i === MANY ? 'good' : 'hangs';
    const name = `r${String(i).padStart(2, '0')}`;
    await client.create(BACKUP_RESOURCE, {
      metadata: { namespace: 'velero', name },
      spec: { storageLocation },
    });
    const metadata = { namespace: 'velero', name, ...more };
    const restore = { metadata, spec: { backupName: name }, status };
    const made = await client.create(RESTORE_RESOURCE, restore);
    if ('finalizers' in more) await client.delete(RESTORE_RESOURCE, made.metadata);
  }
}

async function backupsIn(client: KubeClient, phase: string): Promise<void> {
  for (let i = 0; i <= MANY; i++) {
    const backup: NewObject<Backup> = {
      metadata: { namespace: 'velero', name: `b${String(i).padStart(2, '0')}` },
      spec: { storageLocation: i === MANY ? 'good' : 'hangs' },
      status: { phase, backupItemOperationsAttempted: 1 },
    };
    await client.create(BACKUP_RESOURCE, backup);
  }
}

const common = ({ client, buckets }: Place) => {
  const own = { client, logger: silentLogger, namespace: 'velero' };
  const locations = new RestoreLocations(client, 'velero');
  const writers = new FileWriters();
  const stored = { ...own, buckets, locations, writers };
  return {
    ...stored,
    host: 'test',
    scratch,
    restores: new SharedRestores(own),
    map: new OperationMap({ store: restoreOperationStore(stored) }),
  };
};

type Run = (place: Place) => Promise<unknown>;
const leading = (): void => undefined;

const CASES: Record<string, Run> = {
  'restore-finalizer': async (place) => {
    await restoresIn(place.client, { phase: 'Finalizing' });
    return new RestoreFinalizerController(common(place)).run(place.signal, leading);
  },
  'restore-operations': async (place) => {
    const status = { phase: 'WaitingForPluginOperations', restoreItemOperationsAttempted: 1 };
    await restoresIn(place.client, status);
    const sessions = { open: noSession };
    const options = { ...common(place), sessions };
    return new RestoreOperationsController(options).run(place.signal, leading);
  },
  'restore-unpublished': async (place) => {
    await restoresIn(
      place.client,
      { phase: 'Completed' },
      { annotations: { [UNPUBLISHED]: 'true' } },
    );
    return new RestoreFinalizerController(common(place)).run(place.signal, leading);
  },
  'restore-deletion': async (place) => {
    await restoresIn(place.client, { phase: 'Completed' }, { finalizers: [FINALIZER] });
    const options = {
      ...common(place),
      operations: { forget: () => undefined },
      runner: () => Promise.resolve({ hasLeft: never } as never),
      validation: { itemOperationTimeout: '4h0m0s' },
      metrics: { changed: () => undefined, forget: () => undefined } as never,
    };
    return new RestoreController(options).run(place.signal, leading);
  },
  'backup-operations': async (place) => {
    await backupsIn(place.client, 'WaitingForPluginOperations');
    return new OperationsController(backupOptions(place)).run(place.signal, leading);
  },
  'backup-finalizer': async (place) => {
    await backupsIn(place.client, 'Finalizing');
    return new FinalizerController(backupOptions(place)).run(place.signal, leading);
  },
  'the end of failed backups': async (place) => {
    const { client, signal } = place;
    await backupsIn(client, 'Failed');
    const backups = await client.list(BACKUP_RESOURCE, { namespace: 'velero' });
    const notes = new UnderWayNotes({ ...common(place), assertLeading: leading });
    const [bad, good] = [backups.slice(0, MANY), backups.slice(MANY)];
    for (const backup of bad) await notes.write(backup, signal);
    const { lost, ended } = await openLost({
      ...place,
      namespace: 'velero',
      seen: client,
      assertLeading: leading,
      say: () => Promise.resolve(),
      removeSnapshots: () => Promise.resolve(),
    });
    for (const backup of good) lost.over(backup, { isLeft: true });
    return ended();
  },
};

const backupOptions = (place: Place) => {
  const { client, buckets } = place;
  const backups = new SharedBackups({ client, logger: silentLogger, namespace: 'velero' });
  const map = new OperationMap({ store: backupOperationStore(client, 'velero', buckets) });
  const sessions = { open: noSession };
  return { ...common(place), backups, map, sessions, discovery: () => Discovery.open(client) };
};

describe('a location that hangs', () => {
  it.each(Object.keys(CASES))('leaves workers for other locations: %s', async (name) => {
    const api = await ApiServer.start();
    ends.push(() => api[Symbol.asyncDispose]());
    const kubeconfig = join(scratch, 'kubeconfig');
    fs.writeFileSync(kubeconfig, api.kubeconfig, { mode: 0o600 });
    const client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
    await client.create(NAMESPACES, { metadata: { name: 'velero' } });
    const abort = new AbortController();
    const { signal } = abort;
    const asked: string[] = [];
    const buckets = {
      open: async (location: string): Promise<never> => {
        asked.push(location);
        if (location === 'hangs') await untilAborted(signal, new Promise(() => undefined));
        signal.throwIfAborted();
        const bucket = new MemoryBucket();
        return { bucket, [Symbol.asyncDispose]: () => Promise.resolve() } as never;
      },
    };
    const running = Promise.resolve(CASES[name]?.({ client, signal, buckets }));
    running.catch(() => undefined);
    ends.push(async () => {
      abort.abort(new CanceledError('shutdown'));
      await running;
      client.close();
    });
    // The controller loads the hooks of each restore outside of its workers.
    const most = name === 'restore-finalizer' ? 1 : 0;
    const good = (): number => asked.filter((location) => location === 'good').length;
    await expect.poll(good, { timeout: 8000 }).toBeGreaterThan(most);
    expect(asked).toContain('hangs');
  });
});
