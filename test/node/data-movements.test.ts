import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { setTimeout as sleep } from 'node:timers/promises';
import { DATA_DOWNLOADS, DATA_UPLOADS, type DataUpload } from '../../src/kube/index.ts';
import { testInPlace } from './in-place.ts';
import { storyOf } from './stories.ts';
import {
  assertSame,
  createBackup,
  DEATHS,
  record,
  restore,
  runApplication,
  setConcurrency,
  setEnvironment,
  whileKillingMover,
} from './tools.ts';
import { hasRealNode, RealNode } from '../support/real-node.ts';
import { makeTree } from '../support/trees.ts';
import { prng } from '../support/golden.ts';

/**
 * Volumes that are moved while their node is disturbed: as many as fit into CI's time, and more in
 * the soak run.
 */
const MANY = process.env.SOAK === '1' ? 20 : 10;
/** Kills of one mover, and cut-offs of all. More would exceed its 20 retries on a slow machine. */
const KILLS_MAX = 6;
const CUT_OFFS_MAX = 12;

describe.skipIf(!hasRealNode())('data movements on a real node, with the real Velero', () => {
  let node: RealNode;
  beforeAll(async () => {
    node = await RealNode.start(22_400);
    await node.applyOverlay('beside-velero');
  }, 400_000);
  afterAll(async () => {
    await node[Symbol.asyncDispose]();
  });

  async function backUp(name: string, namespace: string, mover: string): Promise<DataUpload> {
    const labelSelector = `velero.io/backup-name=${name}`;
    const listed = (): Promise<DataUpload[]> =>
      node.client.list(DATA_UPLOADS, { namespace: 'velero', labelSelector });
    const flags = [
      '--include-namespaces',
      namespace,
      '--snapshot-move-data',
      '--data-mover',
      mover,
    ];
    await createBackup(node, name, flags, async () =>
      (await listed()).map(({ spec, status }) => [spec.sourcePVC, status?.phase, status?.message]),
    );
    const [upload] = await listed();
    return upload as DataUpload;
  }

  const recordedStory = (name: string): string[] => {
    const path = new URL(`../golden/velero/recorded/${name}.json`, import.meta.url);
    const versions = JSON.parse(fs.readFileSync(path, 'utf8')) as { object: DataUpload }[];
    return storyOf(versions.map(({ object }) => object));
  };

  it('volumes of files and blocks go to S3 and come back as they were', async () => {
    const uploads = record(node, DATA_UPLOADS);
    const downloads = record(node, DATA_DOWNLOADS);
    await runApplication(node, 'app', [{ name: 'data' }, { name: 'raw', block: true }]);
    const data = await node.volumePath('app', 'data');
    const raw = await node.volumePath('app', 'raw');
    makeTree(join(data, 'tree'), 'real-node');
    fs.chmodSync(join(data, 'tree/README'), 0o000);
    fs.chownSync(join(data, 'tree/README'), 5, 6);
    const file = fs.openSync(raw, 'r+');
    fs.writeSync(file, prng('raw', 5 << 20), 0, 5 << 20, 20 << 20);
    fs.closeSync(file);
    await backUp('b1', 'app', 'longshore');
    await restore(node, 'r1', 'b1', { app: 'app-back' });
    assertSame(data, await node.volumePath('app-back', 'data'));
    execFileSync('cmp', [raw, await node.volumePath('app-back', 'raw')]);
    await node.kopia('app', 'snapshot', 'verify', '--verify-files-percent=100');
    uploads.stop();
    downloads.stop();
    // The same story as of the real node-agent, version by version: nothing that a watcher could
    // stumble over.
    const names = ['datauploads__velero__full1-87m7n', 'datadownloads__velero__rfull1-z92jv'];
    // But for one: the finalizer may come with the claim, which is a request less.
    const withoutFinalizer = (story: string[]): string[] =>
      story.filter((step) => step !== ' |  | finalizer');
    const [upStory = [], downStory = []] = names.map(recordedStory).map(withoutFinalizer);
    expect(uploads.versions.size).toBe(2);
    for (const versions of uploads.versions.values())
      expect(withoutFinalizer(storyOf(versions))).toEqual(upStory);
    expect(downloads.versions.size).toBe(2);
    for (const versions of downloads.versions.values())
      expect(withoutFinalizer(storyOf(versions))).toEqual(downStory);
    const left = await node.kubectl(
      '-n',
      'velero',
      'get',
      'pvc,volumesnapshot,pod',
      '-l',
      '!role',
      '-o',
      'name',
    );
    expect(
      left
        .trim()
        .split('\n')
        .filter((name) => !name.startsWith('pod/velero')),
    ).toEqual(['']);
  });

  testInPlace(() => node, backUp);

  it('what one data mover wrote the other one restores', async () => {
    const before = await node.volumePath('app', 'data');
    await backUp('by-velero', 'app', 'velero');
    const location = { namespace: 'velero', labelSelector: 'velero.io/backup-name=by-velero' };
    const uploads = await node.client.list(DATA_UPLOADS, location);
    expect(uploads.map(({ status }) => status?.phase)).toContain('Completed');
    await restore(node, 'r-velero', 'by-velero', { app: 'by-velero' });
    assertSame(before, await node.volumePath('by-velero', 'data'));
  });

  it('the data of a deleted and of an expired backup is gone after maintenance', async () => {
    await runApplication(node, 'brief', [{ name: 'data' }]);
    const data = await node.volumePath('brief', 'data');
    fs.writeFileSync(join(data, 'first'), randomBytes(8 << 20));
    await backUp('deleted', 'brief', 'longshore');
    fs.writeFileSync(join(data, 'second'), randomBytes(8 << 20));
    await backUp('expired', 'brief', 'longshore');
    const bytes = async (): Promise<number> => {
      const text = await node.kopia('brief', 'blob', 'stats', '--raw', '--prefix=p');
      return Number(/^Total: (\d+)/m.exec(text)?.[1]);
    };
    expect(await bytes()).toBeGreaterThan(16 << 20);
    await node.velero('backup', 'delete', 'deleted', '--confirm');
    const past = JSON.stringify({ status: { expiration: '2020-01-01T00:00:00Z' } });
    const patch = ['patch', 'backup.velero.io/expired', '--type=merge', '-p', past];
    await node.kubectl('-n', 'velero', ...patch);
    const left = async (): Promise<string> => {
      const names = ['backup.velero.io/deleted', 'backup.velero.io/expired'];
      const query = ['get', ...names, '--ignore-not-found', '-o', 'name'];
      return node.kubectl('-n', 'velero', ...query);
    };
    while ((await left()) !== '') await sleep(500);
    const info = ['get', 'configmap', '-l', 'velero.io/data-upload-snapshot-info', '-o', 'name'];
    const records = await node.kubectl('-n', 'velero', ...info);
    expect(records).not.toMatch(/deleted-|expired-/);
    expect(records).toMatch(/b1-/);
    const snapshots = await node.kopia('brief', 'snapshot', 'list', '--all', '--json');
    expect(JSON.parse(snapshots)).toEqual([]);
    // The first run marks unused contents, and a later run drops them.
    for (let runs = 0; runs < 3 && (await bytes()) > 1 << 20; runs++) {
      await node.kopia('brief', 'maintenance', 'run', '--full', '--safety=none');
      await sleep(1100);
    }
    expect(await bytes()).toBeLessThan(1 << 20);
  }, 120_000);

  it('neither agents nor movers ask for what they may not do', async () => {
    const logs = await node.kubectl(
      '-n',
      'velero',
      'logs',
      '-l',
      'role=longshore-node-agent',
      '--tail=-1',
    );
    expect(logs).toMatch(/data upload completed/);
    expect(logs).toMatch(/data download completed/);
    expect(logs).not.toMatch(/forbidden/i);
  });

  it('a data mover killed at 30, 60 and 90 % goes on each time, and every byte is there', async () => {
    const mebibytes = 600;
    await node.applyOverlay('beside-velero', ['--progress-interval=200ms']);
    // The last tenth takes long enough to be seen on the CR, which is written once a second.
    await setEnvironment(node, 'longshore-node-agent', 'LONGSHORE_UPLOAD_LIMIT=25MiB');
    await runApplication(node, 'killed', [{ name: 'data', storage: '1Gi' }]);
    const source = await node.volumePath('killed', 'data');
    fs.writeFileSync(join(source, 'data.bin'), randomBytes(mebibytes << 20));
    const {
      result: upload,
      killedAt,
      done,
    } = await whileKillingMover(
      node,
      DATA_UPLOADS,
      {
        labelSelector: 'velero.io/backup-name=killed',
        command: /--data-upload=killed-/,
        bytes: mebibytes << 20,
      },
      () => backUp('killed', 'killed', 'longshore'),
    );
    expect(killedAt).toEqual(DEATHS);
    expect(upload.metadata.annotations?.['longshore.io/data-mover-restarts']).toBe('3');
    expect(upload.status?.message).toBeUndefined();
    expect(done).toEqual(done.toSorted((a, b) => a - b));
    await setEnvironment(node, 'longshore-node-agent', 'LONGSHORE_UPLOAD_LIMIT-');
    await restore(node, 'r-killed', 'killed', { killed: 'killed-back' });
    assertSame(source, await node.volumePath('killed-back', 'data'));
  }, 200_000);

  it(`${MANY} volumes go and come back while agents, movers, kubelet, containerd are killed, and movers cut off`, async ({
    signal,
  }) => {
    const claims = Array.from({ length: MANY }, (_, i) => ({
      name: `v${i}`,
      block: i % 5 === 4,
      storage: i % 5 === 4 ? '24Mi' : '64Mi',
    }));
    await setConcurrency(node, 3);
    // The mover of a volume may be killed more often than the default number of retries allows.
    await node.applyOverlay('beside-velero', [
      '--node-agent-configmap=node-agent-config',
      '--data-mover-retries=20',
      // The process of a force-deleted pod may still run: the next mover waits this long.
      '--fence-timeout=5s',
    ]);
    await runApplication(node, 'many', claims);
    const sources = new Map<string, string>();
    for (const [i, { name, block }] of claims.entries()) {
      const path = await node.volumePath('many', name);
      if (block) fs.writeFileSync(path, prng(`block-${i}`, 24 << 20));
      else {
        fs.writeFileSync(join(path, 'large'), prng(`large-${i}`, 12 << 20));
        for (let k = 0; k < 20; k++)
          fs.writeFileSync(join(path, `small-${k}`), prng(`${i}-${k}`, 100 * k));
      }
      sources.set(name, path);
    }
    let isOver = false;
    /** A mover has run since the last agent was killed. */
    let isAtWork = false;
    let kills = 0;
    let cutOffs = 0;
    /** Kills per data mover, by the name of its pod. */
    const killsOf = new Map<string, number>();
    const cutOff = { backup: 0, restore: 0 };
    const kindOf = (command: string): keyof typeof cutOff =>
      command.includes('mover backup') ? 'backup' : 'restore';
    let seed = 7;
    const random = (below: number): number =>
      (seed = (seed * 1_103_515_245 + 12_345) % 2 ** 31) % below;
    const killer = (async () => {
      while (!isOver && !signal.aborted) {
        await sleep(1500 + random(3000));
        const movers = node.processesOf(/data-mover (backup|restore) /);
        isAtWork ||= movers.length > 0;
        // At least one mover of each kind is cut off, for any random numbers.
        const due = movers.filter(({ command }) => cutOff[kindOf(command)] === 0);
        if (random(3) === 0 || due.length > 0) {
          const among = due.length > 0 ? due : cutOffs < CUT_OFFS_MAX ? movers : [];
          const mover = among[random(among.length)];
          if (!mover) continue;
          // The mover may have ended meanwhile.
          const isCut = await node.cutOff(mover.pid).then(
            () => true,
            () => false,
          );
          if (isCut) {
            cutOff[kindOf(mover.command)]++;
            cutOffs++;
          }
          continue;
        }
        // An agent that dies before it has taken over, again and again, never comes to it, as on a
        // machine that is busy.
        const isAgent = random(3) === 0 && isAtWork;
        const selector = isAgent ? 'role=longshore-node-agent' : 'velero.io/exposer-pod-group';
        const pods = (
          await node.kubectl(
            '-n',
            'velero',
            'get',
            'pods',
            '-l',
            selector,
            '-o',
            'jsonpath={.items[*].metadata.name}',
          )
        ).split(' ');
        const able = pods.filter((pod) => isAgent || (killsOf.get(pod) ?? 0) < KILLS_MAX);
        const victim = able[random(able.length)];
        if (!victim) continue;
        killsOf.set(victim, (killsOf.get(victim) ?? 0) + 1);
        // As the kernel does it: no grace, no goodbye; the API forgets some of them before their
        // node does.
        const how = random(8) === 0 ? ['--force', '--grace-period=0'] : ['--grace-period=1'];
        await node
          .kubectl('-n', 'velero', 'delete', 'pod', victim, ...how, '--wait=false')
          .catch(() => '');
        kills++;
        if (isAgent) isAtWork = false;
        // Parts of the node itself; containers go on without them.
        if (kills === 6) await node.crash('kubelet');
        if (kills === 10) await node.crash('containerd');
      }
    })();
    try {
      await backUp('many', 'many', 'longshore');
      await restore(node, 'r-many', 'many', { many: 'many-back' });
    } finally {
      isOver = true;
      await killer;
    }
    expect(kills).toBeGreaterThan(9);
    expect(cutOff.backup).toBeGreaterThan(0);
    expect(cutOff.restore).toBeGreaterThan(0);
    for (const [name, path] of sources) {
      const target = await node.volumePath('many-back', name);
      if (fs.statSync(path).isFile()) execFileSync('cmp', [path, target]);
      else execFileSync('diff', ['-r', path, target]);
    }
    await node.kopia('many', 'snapshot', 'verify', '--verify-files-percent=100');
  }, 900_000);

  it("our agent runs Velero's data mover, and Velero's agent runs ours", async () => {
    const before = await node.volumePath('app', 'data');
    const theirs = await node.kubectl('-n', 'velero', 'get', 'ds', 'node-agent', '-o', 'json');
    // Theirs by ours, in place of their agent: their mover knows no other name than its own.
    await node.kubectl('-n', 'velero', 'delete', 'ds', 'node-agent');
    await node.applyOverlay('instead-of-velero', ['--data-mover-image=localhost/velero:1']);
    await backUp('their-mover', 'app', 'velero');
    await restore(node, 'r-their-mover', 'their-mover', { app: 'their-mover' });
    assertSame(before, await node.volumePath('their-mover', 'data'));
    const logs = await node.kubectl('-n', 'velero', 'logs', '-l', 'name=node-agent', '--tail=-1');
    expect(logs).toMatch(/Starting Velero data-mover backup/);
    expect(logs).toMatch(/data upload completed/);
    // Ours by theirs: hosting pods take the image of the DaemonSet, and run /velero in it.
    await node.kubectl('-n', 'velero', 'delete', 'ds', 'node-agent');
    const daemonSet = JSON.parse(theirs) as {
      metadata: Record<string, unknown>;
      spec: { updateStrategy: object };
    };
    const { name, namespace, labels } = daemonSet.metadata;
    daemonSet.metadata = { name, namespace, labels };
    daemonSet.spec.updateStrategy = { type: 'OnDelete' };
    await node.apply(JSON.stringify(daemonSet));
    // The new pod replaces the old pod: wait for one ready pod.
    const ready = 'jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}';
    while (
      (
        await node.kubectl('-n', 'velero', 'get', 'pods', '-l', 'name=node-agent', '-o', ready)
      ).trim() !== 'True'
    ) {
      await sleep(500);
    }
    const image = {
      op: 'replace',
      path: '/spec/template/spec/containers/0/image',
      value: 'localhost/longshore:1',
    };
    await node.kubectl(
      '-n',
      'velero',
      'patch',
      'ds',
      'node-agent',
      '--type=json',
      '-p',
      JSON.stringify([image]),
    );
    await backUp('our-mover', 'app', 'velero');
    await restore(node, 'r-our-mover', 'our-mover', { app: 'our-mover' });
    assertSame(before, await node.volumePath('our-mover', 'data'));
    const agent = await node.kubectl('-n', 'velero', 'logs', '-l', 'name=node-agent', '--tail=-1');
    expect(agent).toMatch(/msg="data upload is in progress"/);
  }, 300_000);
});
