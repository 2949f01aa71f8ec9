import { execFileSync, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { EVENTS, POD_VOLUME_BACKUPS, POD_VOLUME_RESTORES, PODS } from '../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { assertSameTree } from '../support/kopia.ts';
import { packagedProgram } from '../support/package.ts';
import { makeTree } from '../support/trees.ts';

/** Root reads any file. Without these two capabilities root is like any other user. */
const WITHOUT_RIGHTS =
  process.getuid?.() === 0 ? ['setpriv', '--bounding-set=-dac_override,-dac_read_search'] : ['env'];
const BIN = packagedProgram();
const RESTORE_UID = '0b5c0b3e-6f0e-4a52-9c1f-3b6d1d5a7e11';

describe('longshore pod-volume as hosting pods run it', () => {
  let cluster: TestCluster;
  let podUid: string;
  let made = 0;
  beforeAll(async () => {
    cluster = await TestCluster.start();
    await cluster.makeNamespace('app');
    const pod = await cluster.client.create(PODS, {
      metadata: { name: 'web-0', namespace: 'app' },
      spec: {
        nodeName: 'a-node-of-its-own',
        containers: [{ name: 'web', image: 'web' }],
        volumes: [{ name: 'data' }],
      },
    });
    podUid = pod.metadata.uid;
  });
  afterAll(async () => {
    await cluster[Symbol.asyncDispose]();
  });

  const setPhase = async (phase: 'Running' | 'Pending'): Promise<void> => {
    await cluster.client.patch(
      PODS,
      { namespace: 'app', name: 'web-0' },
      { status: { phase } },
      { subresource: 'status' },
    );
  };

  interface Run {
    readonly ended: Promise<{ code: number | null; message: string }>;
    readonly kill: () => void;
    readonly log: () => string;
  }

  function start(
    direction: 'backup' | 'restore',
    name: string,
    path: string,
    more: NodeJS.ProcessEnv = {},
    [command = BIN, ...before]: readonly string[] = [],
  ): Run {
    const terminationLog = join(cluster.directory, `termination-${made++}`);
    fs.writeFileSync(terminationLog, '');
    const flags = [
      ...['pod-volume', direction, '--volume-path', path, `--pod-volume-${direction}`, name],
      ...['--resource-timeout', '1m0s', '--kubeconfig', cluster.kubeconfig],
      ...(direction === 'restore' ? ['--cache-volume-path='] : []),
    ];
    const child = spawn(command, command === BIN ? flags : [...before, BIN, ...flags], {
      env: {
        ...process.env,
        HOME: join(cluster.directory, 'home'),
        VELERO_NAMESPACE: NAMESPACE,
        NODE_NAME: 'node-1',
        LONGSHORE_TERMINATION_LOG: terminationLog,
        ...more,
      },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let log = '';
    child.stdout.on('data', (data: Buffer) => (log += String(data)));
    return {
      ended: new Promise((resolve) => {
        child.on('close', (code) => {
          resolve({ code, message: fs.readFileSync(terminationLog, 'utf8') });
        });
      }),
      kill: () => child.kill('SIGKILL'),
      log: () => log,
    };
  }

  const common = { volume: 'data', backupStorageLocation: 'default', repoIdentifier: '' };
  const makeBackup = async (
    name: string,
    uploaderSettings: Record<string, string> | null = null,
  ): Promise<void> => {
    await cluster.client.create(POD_VOLUME_BACKUPS, {
      metadata: { name, namespace: NAMESPACE },
      spec: {
        ...common,
        node: 'node-1',
        uploaderType: 'kopia',
        uploaderSettings,
        pod: { kind: 'Pod', namespace: 'app', name: 'web-0', uid: podUid },
      },
      status: { phase: 'InProgress' },
    });
  };

  it('moves a volume there and back, and lets the pod go', async () => {
    await setPhase('Running');
    const source = join(cluster.directory, 'source');
    makeTree(source, 'process');
    await makeBackup('there');
    const backup = await start('backup', 'there', source).ended;
    expect(backup.code, backup.message).toBe(0);
    const { snapshotID } = JSON.parse(backup.message) as { snapshotID: string };

    await setPhase('Pending');
    const target = join(cluster.directory, 'target');
    fs.mkdirSync(target);
    await cluster.client.create(POD_VOLUME_RESTORES, {
      metadata: {
        name: 'back',
        namespace: NAMESPACE,
        ownerReferences: [
          { apiVersion: 'velero.io/v1', kind: 'Restore', name: 'r', uid: RESTORE_UID },
        ],
      },
      spec: {
        ...common,
        uploaderType: 'kopia',
        snapshotID,
        sourceNamespace: 'app',
        pod: { kind: 'Pod', namespace: 'app', name: 'web-0', uid: podUid },
      },
      status: { phase: 'InProgress' },
    });
    const restore = await start('restore', 'back', target).ended;
    expect(restore.code, restore.message).toBe(0);
    expect(fs.statSync(join(target, '.velero', RESTORE_UID)).size).toBe(0);
    const [is, was] = [target, source].map((path) => fs.statSync(path, { bigint: true }));
    expect(is?.mtimeNs).toBe(was?.mtimeNs);
    // As the helper does it at its end.
    fs.rmSync(join(target, '.velero'), { recursive: true });
    execFileSync('touch', ['-r', source, target]);
    assertSameTree(source, target);
    const events = await cluster.client.list(EVENTS, { namespace: NAMESPACE });
    const said = events
      .filter(({ involvedObject }) => involvedObject.name === 'back')
      .map(({ reason, involvedObject }) => `${involvedObject.kind ?? ''} ${reason ?? ''}`);
    expect(said).toContain('PodVolumeRestore Data-Path-Started');
    expect(said).toContain('PodVolumeRestore Data-Path-Completed');
    expect(said).toContain('PodVolumeRestore Data-Path-Stopped');
  });

  it('that is killed is gone on with from what it stored', async () => {
    await setPhase('Running');
    const source = join(cluster.directory, 'large');
    fs.mkdirSync(source);
    const random = fs.openSync('/dev/urandom', 'r');
    for (let i = 0; i < 24; i++) {
      const bytes = Buffer.alloc(10 << 20);
      fs.readSync(random, bytes);
      fs.writeFileSync(join(source, `file-${i}`), bytes);
    }
    fs.closeSync(random);
    await makeBackup('killed');
    const stored = (): number =>
      fs
        .readdirSync(cluster.directory, { recursive: true, withFileTypes: true })
        .filter((entry) => entry.isFile() && entry.parentPath.includes('/kopia/app'))
        .map((entry) => fs.statSync(join(entry.parentPath, entry.name)).size)
        .reduce((a, b) => a + b, 0);
    const before = stored();
    const first = start('backup', 'killed', source, { LONGSHORE_UPLOAD_LIMIT: '64MiB' });
    await expect.poll(() => stored() - before, { timeout: 60_000, interval: 50 }).toBeGreaterThan(190 << 20); // prettier-ignore
    first.kill();
    expect((await first.ended).code).toBeNull();
    const storedAtKill = stored();
    const second = await start('backup', 'killed', source).ended;
    expect(second.code, second.message).toBe(0);
    expect(JSON.parse(second.message)).toMatchObject({ totalBytes: 240 << 20 });
    // An index is written after every 128 MiB. The indexed contents are not stored again.
    expect(stored() - storedAtKill).toBeLessThan((240 - 100) << 20);
  });

  it.each<[string, NodeJS.ProcessEnv, Record<string, string> | null, RegExp | number]>([
    ['fails and names it', {}, null, /Error when processing (private|secret): .*EACCES/],
    [
      'leaves it out where the environment says so',
      { LONGSHORE_IGNORE_UNREADABLE: 'true' },
      null,
      2,
    ],
    ['leaves it out where its settings say so', {}, { 'longshore.ignoreUnreadable': 'true' }, 2],
    [
      'fails where its settings say so, whatever the environment says',
      { LONGSHORE_IGNORE_UNREADABLE: 'true' },
      { 'longshore.ignoreUnreadable': 'false' },
      /Error when processing (private|secret): .*EACCES/,
    ],
    [
      'fails where nobody can tell what is asked for',
      { LONGSHORE_IGNORE_UNREADABLE: 'maybe' },
      null,
      /LONGSHORE_IGNORE_UNREADABLE "maybe" is not true or false/,
    ],
  ])('of which something cannot be read %s', async (how, environment, settings, outcome) => {
    await setPhase('Running');
    const source = join(cluster.directory, how);
    fs.mkdirSync(join(source, 'private'), { recursive: true });
    for (const name of ['secret', 'readable', 'private/file']) {
      fs.writeFileSync(join(source, name), name);
    }
    fs.chmodSync(join(source, 'secret'), 0);
    fs.chmodSync(join(source, 'private'), 0);
    const name = how.replaceAll(/[^a-z]+/g, '-');
    await makeBackup(name, settings);
    const { code, message } = await start('backup', name, source, environment, WITHOUT_RIGHTS)
      .ended;
    if (typeof outcome === 'number') {
      expect(code, message).toBe(0);
      expect(JSON.parse(message)).toMatchObject({ unreadable: outcome, totalBytes: 8 });
    } else {
      expect(code).toBe(1);
      expect(message).toMatch(outcome);
    }
  });

  it('leaves out what its settings and its agent say, and tells so', async () => {
    await setPhase('Running');
    const source = join(cluster.directory, 'excluding');
    fs.mkdirSync(source);
    for (const name of ['a.log', 'b.tmp', 'kept']) fs.writeFileSync(join(source, name), name);
    await makeBackup('excluding', { 'longshore.excludePaths': '*.log' });
    const LONGSHORE_EXCLUDES = encodeURIComponent(JSON.stringify({ storageClass: '*.tmp' }));
    const { code, message } = await start('backup', 'excluding', source, { LONGSHORE_EXCLUDES })
      .ended;
    expect(code, message).toBe(0);
    expect(JSON.parse(message)).toMatchObject({
      totalBytes: 4,
      note: 'left out by rules: "*.log", "*.tmp"',
    });
  });

  it('that is told to end says that it was canceled, and leaves the volume as it is', async () => {
    await makeBackup('ended');
    await cluster.client.patch(
      POD_VOLUME_BACKUPS,
      { namespace: NAMESPACE, name: 'ended' },
      { status: { phase: 'Prepared' } },
    );
    const run = start('backup', 'ended', cluster.directory);
    setTimeout(() => {
      void cluster.client.patch(
        POD_VOLUME_BACKUPS,
        { namespace: NAMESPACE, name: 'ended' },
        { status: { phase: 'Canceled' } },
      );
    }, 1000);
    const { code, message } = await run.ended;
    expect(code).toBe(1);
    expect(message).toBe(
      'Failed to run data path service for PVB ended: error waiting for PVB: it is already Canceled',
    );
  });
});
