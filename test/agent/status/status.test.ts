import { describe, expect, it } from 'vitest';
import { describeMovements } from '../../../src/agent/index.ts';
import { parseNodeAgentConfig } from '../../../src/agent/node-agent-config.ts';
import {
  type AgentGroup,
  dataMoversOf,
  loadAgentGroups,
} from '../../../src/agent/status/serving-agents.ts';
import type { StatusWorld } from '../../../src/agent/status/status.ts';
import type { Movement } from '../../../src/agent/movement.ts';
import { CodedError } from '../../../src/base/index.ts';
import type { KubeClient, Node, Pod } from '../../../src/kube/index.ts';
import { aPod } from '../../support/builders.ts';

const time = (second: number): string => new Date(second * 1000).toISOString();

let count = 0;
const upload = (name: string, status: object = {}, more: object = {}): Movement => {
  const { spec, metadata } = more as { spec?: object; metadata?: object };
  return {
    metadata: { name, uid: `u-${name}`, creationTimestamp: time(++count), ...metadata },
    spec: { sourceNamespace: 'app', sourcePVC: name, backupStorageLocation: 'default', ...spec },
    status,
  } as Movement;
};
const download = (name: string, namespace: string): Movement =>
  ({
    metadata: { name, uid: `u-${name}`, creationTimestamp: time(++count) },
    spec: { targetVolume: { namespace, pvc: name, pv: '' }, backupStorageLocation: 'default' },
  }) as Movement;

const podVolume = (name: string, spec: object, status: object = {}, metadata = {}): Movement =>
  ({
    metadata: { name, uid: `u-${name}`, creationTimestamp: time(++count), ...metadata },
    spec: {
      pod: { namespace: 'app', name: 'web-0' },
      volume: 'data',
      backupStorageLocation: 'default',
      ...spec,
    },
    status,
  }) as Movement;

const group = (name: string, movers: string, config: object = {}, wanted = 2): AgentGroup => ({
  name,
  movers: dataMoversOf(movers),
  selector: `role=${name}`,
  config: parseNodeAgentConfig('', { json: JSON.stringify(config) }).config,
  wanted,
  isOwn: false,
});
const agent = (role: string, nodeName: string, more: object = {}): Pod =>
  aPod({
    metadata: { name: `${role}-${nodeName}`, labels: { role }, ...more },
    spec: { nodeName, containers: [] },
    status: { phase: 'Running' },
  });
const node = (name: string, labels: object = {}): Node =>
  ({ metadata: { name, labels } }) as unknown as Node;

const NOW = 100_000;
const world = (more: Partial<StatusWorld>): StatusWorld => ({
  movements: [],
  pods: [agent('node-agent', 'n-1')],
  groups: [group('node-agent', 'velero')],
  nodes: [node('n-1')],
  claims: [],
  targets: { namespaces: new Set(), names: new Set() },
  nowMs: NOW * 1000,
  ...more,
});
const waits = (more: Partial<StatusWorld>): Record<string, string> =>
  Object.fromEntries(describeMovements(world(more)).map((row) => [row.name, row.waitsFor]));

describe('who serves, for one who may not list DaemonSets', () => {
  const refused = new CodedError('KUBE_FORBIDDEN', 'no');
  const client = (found: Record<string, string[]>): KubeClient =>
    ({
      list: () => Promise.reject(refused),
      find: (_resource: unknown, { name }: { name: string }) => {
        if (name === 'secret') return Promise.reject(refused);
        const args = found[name];
        const metadata = { name };
        return Promise.resolve(
          args && { metadata, spec: { template: { spec: { containers: [{ args }] } } } },
        );
      },
    }) as never;

  it('is known by the usual names, and by those of the pods that run', async () => {
    const ownerReferences = ['mine', 'secret'].map((name) => ({ kind: 'DaemonSet', name }));
    const pods = ownerReferences.map((owner) => agent('x', 'n-1', { ownerReferences: [owner] }));
    const server = ['node-agent', 'server'];
    const groups = await loadAgentGroups(
      client({
        'node-agent': server,
        mine: [...server, '--data-movers', 'acme', '--agent-selector=role=mine'],
        'longshore-node-agent': ['something', 'else'],
      }),
      'velero',
      pods,
    );
    expect(groups.map(({ name, movers, selector }) => [name, [...movers], selector])).toEqual([
      ['node-agent', ['velero', '', 'velero-fs', 'velero-block'], 'role=node-agent'],
      ['mine', ['acme'], 'role=mine'],
    ]);
  });

  it('includes the mover of backups beside Velero if the agents are ours', async () => {
    const args = ['node-agent', 'server'];
    const containers = [{ args, env: [{ name: 'LONGSHORE_UPLOAD_LIMIT' }] }];
    const found = {
      list: () =>
        Promise.resolve([
          { metadata: { name: 'node-agent' }, spec: { template: { spec: { containers } } } },
        ]),
    } as never;
    const [group] = await loadAgentGroups(found, 'velero', []);
    expect([...(group?.movers ?? [])]).toEqual(['velero', 'longshore', '', 'velero-fs']);
  });

  it('and by the flags where no DaemonSet says so', async () => {
    const groups = await loadAgentGroups(client({}), 'velero', [], { dataMovers: 'acme' });
    expect(groups).toMatchObject([{ name: '', movers: new Set(['acme']) }]);
  });
});

describe('what an operation waits for', () => {
  it('beside Velero, each DaemonSet serves its own data movers', () => {
    const groups = [group('node-agent', 'velero'), group('longshore-node-agent', 'longshore')];
    const movements = [
      upload('theirs'),
      upload('ours', {}, { spec: { datamover: 'longshore' } }),
      upload('nobodys', {}, { spec: { datamover: 'acme' } }),
    ];
    const pods = [agent('node-agent', 'n-1'), agent('longshore-node-agent', 'n-1')];
    expect(waits({ groups, movements, pods })).toEqual({
      theirs: 'a node-agent to accept it',
      ours: 'a node-agent to accept it',
      nobodys:
        'the data mover "acme", which no agent here serves (node-agent serves velero; longshore-node-agent serves longshore)',
    });
    expect(waits({ groups, movements, pods: [agent('node-agent', 'n-1')] })).toMatchObject({
      theirs: 'a node-agent to accept it',
      ours: 'a node-agent: none of DaemonSet longshore-node-agent is running (0 of 2 are ready)',
    });
  });

  it('one to be restored in place waits for agents of this program, and not for those of Velero', () => {
    const own = { ...group('longshore-node-agent', 'longshore-test'), isOwn: true };
    const into = download('into', 'app');
    Object.assign(into.spec, {
      datamover: 'longshore',
      dataMoverConfig: { 'longshore.inPlace': 'true' },
    });
    const movements = [into];
    const groups = [group('node-agent', 'velero'), own];
    expect(waits({ groups, movements })).toEqual({
      into: 'a node-agent: none of DaemonSet longshore-node-agent is running (0 of 2 are ready)',
    });
    const pods = [agent('longshore-node-agent', 'n-1')];
    expect(waits({ groups, movements, pods })).toEqual({ into: 'a node-agent to accept it' });
    // The agent may run this program from another image.
    expect(waits({ groups: groups.slice(0, 1), movements })).toEqual({
      into: 'a node-agent of Longshore to accept it',
    });
  });

  it('of a pod that a DaemonSet owns, its labels have no say', () => {
    const groups = [group('node-agent', 'velero'), group('other', 'acme')];
    const ownerReferences = [{ apiVersion: 'apps/v1', kind: 'DaemonSet', name: 'other', uid: 'd' }];
    const pods = [agent('node-agent', 'n-1', { ownerReferences })];
    const movements = [upload('a'), upload('b', {}, { spec: { datamover: 'acme' } })];
    expect(waits({ groups, movements, pods })).toEqual({
      a: 'a node-agent: none of DaemonSet node-agent is running (0 of 2 are ready)',
      b: 'a node-agent to accept it',
    });
  });

  it.each([
    ['no DaemonSet', [], 'a node-agent: there is no node-agent DaemonSet in this namespace'],
    [
      'a DaemonSet without nodes',
      [group('far', 'velero', {}, 0)],
      'a node-agent: DaemonSet far has no node to run on',
    ],
  ])('%s', (_, groups, expected) => {
    expect(waits({ groups, movements: [upload('a')], pods: [] })).toEqual({ a: expected });
  });

  it('an agent that is not ready or being deleted accepts nothing', () => {
    const deaf = agent('node-agent', 'n-1');
    deaf.status = { phase: 'Running', conditions: [{ type: 'Ready', status: 'False' }] };
    const going = agent('node-agent', 'n-2', { deletionTimestamp: time(1) });
    const expected = 'a node-agent: none of DaemonSet node-agent is running (0 of 2 are ready)';
    expect(waits({ movements: [upload('a')], pods: [deaf, going] })).toEqual({ a: expected });
  });

  it('a queue that is full, and how many are before it', () => {
    const groups = [group('node-agent', 'velero', { loadConcurrency: { prepareQueueLength: 2 } })];
    const labels = { 'velero.io/expose-on-going': 'true' };
    const accepted = (name: string): Movement =>
      upload(name, { phase: 'Accepted', acceptedByNode: 'n-1' }, { metadata: { labels } });
    const movements = [accepted('a1'), upload('first'), upload('second')];
    expect(waits({ groups, movements })).toMatchObject({ second: 'a node-agent to accept it' });
    expect(waits({ groups, movements: [accepted('a2'), ...movements] })).toMatchObject({
      first:
        'the queue: 2 of 2 volumes are being made available (prepareQueueLength); ahead of it: 0',
      second:
        'the queue: 2 of 2 volumes are being made available (prepareQueueLength); ahead of it: 1',
    });
  });

  it('nodes that already have enough volumes to move', () => {
    const on = (name: string, node: string, phase = 'Prepared'): Movement =>
      upload(name, { phase, node });
    const waiting = Array.from({ length: 7 }, (_, i) => on(`a${i}`, 'n-1'));
    const movements = [...waiting, upload('next')];
    const expected =
      'a place in line: all nodes with a node-agent (1) already have enough volumes to move';
    expect(waits({ movements }).next).toBe('a node-agent to accept it');
    expect(waits({ movements: [on('b', 'n-1', 'InProgress'), ...movements] }).next).toBe(expected);
    const accepted = upload('c', { phase: 'Accepted', acceptedByNode: 'n-1' });
    expect(waits({ movements: [accepted, ...movements] }).next).toBe(expected);
    const pods = [agent('node-agent', 'n-1'), agent('node-agent', 'n-2')];
    expect(waits({ movements: [accepted, ...movements], pods }).next).toBe(
      'a node-agent to accept it',
    );
  });

  it('a node that already has enough volumes of its pods to move', () => {
    const backup = (name: string, phase: string, node = 'n-1'): Movement => ({
      ...upload(name, { phase }),
      spec: { node, pod: { namespace: 'app', name: 'web', uid: 'u' }, volume: name } as never,
    });
    const waiting = Array.from({ length: 7 }, (_, i) => backup(`a${i}`, 'Prepared'));
    const movements = [...waiting, backup('next', 'New'), backup('far', 'New', 'n-2')];
    const pods = [agent('node-agent', 'n-1'), agent('node-agent', 'n-2')];
    expect(waits({ movements, pods }).next).toBe('the node-agent of n-1 to accept it');
    const moving = backup('b', 'InProgress');
    expect(waits({ movements: [moving, ...movements], pods })).toMatchObject({
      next: 'a place in line: n-1 already has enough volumes of its pods to move',
      far: 'the node-agent of n-2 to accept it',
    });
  });

  it('a restore of a volume of a pod, whose node only other restores of the pod tell', () => {
    const restore = (name: string, pod: string, status: object = {}): Movement =>
      podVolume(name, { pod: { namespace: 'app', name: pod, uid: `u-${pod}` } }, status);
    const prepared = { phase: 'Prepared', node: 'n-1' };
    const waiting = Array.from({ length: 7 }, (_, i) => restore(`a${i}`, 'web', prepared));
    const movements = [...waiting, restore('next', 'web'), restore('other', 'db')];
    const pods = [agent('node-agent', 'n-1'), agent('node-agent', 'n-2')];
    const other = 'pod app/db to wait for its data (init container restore-wait)';
    const places = { movements, pods };
    expect(waits(places)).toMatchObject({ next: 'the node-agent of n-1 to accept it', other });
    const full = { ...places, movements: [restore('b', 'web', prepared), ...movements] };
    expect(waits(full)).toMatchObject({
      next: 'a place in line: n-1 already has enough volumes of its pods to move',
      other: `${other}, or for a place in line: nodes already have enough volumes of their pods to move`,
    });
    // An ended restore names its node too, and takes no slot.
    const done = restore('done', 'db', { phase: 'Completed', node: 'n-2' });
    expect(waits({ ...full, movements: [done, ...full.movements] }).other).toBe(
      'the node-agent of n-2 to accept it',
    );
    const accepted = { phase: 'Accepted', node: 'n-1' };
    const busy = Array.from({ length: 8 }, (_, i) => restore(`c${i}`, 'web', accepted));
    expect(waits({ pods, movements: [...busy, restore('next', 'web')] }).next).toBe(
      'a free place: the node-agent of n-1 is already making as many volumes available as it may',
    );
  });

  it('agents that make as many volumes available as they may', () => {
    const movements = Array.from({ length: 8 }, (_, i) =>
      upload(`a${i}`, { phase: 'Accepted', acceptedByNode: 'n-1' }),
    );
    movements.push(upload('next'), download('back', 'app'));
    // Some places are for restores only.
    expect(waits({ movements }).back).toBe('a node-agent to accept it');
    expect(waits({ movements }).next).toBe(
      'a free place: the only agent is already making as many volumes available as it may',
    );
    const groups = [group('node-agent', 'velero', { loadConcurrency: { globalConfig: 5 } })];
    expect(waits({ movements, groups }).next).toBe('a node-agent to accept it');
    const pods = [agent('node-agent', 'n-1'), agent('node-agent', 'n-2')];
    expect(waits({ movements, pods }).next).toBe('a node-agent to accept it');
  });

  it('a restore waits for its PVC, where that can be read', () => {
    const movements = [download('there', 'app'), download('missing', 'app'), download('b', 'far')];
    const targets = { namespaces: new Set(['app']), names: new Set(['app/there']) };
    expect(waits({ movements, targets })).toEqual({
      there: 'a node-agent to accept it',
      missing: 'PVC app/missing, which does not exist yet',
      b: 'a node-agent to accept it',
    });
  });

  it('a free place, as the labels of its node have it', () => {
    const loadConcurrency = {
      globalConfig: 1,
      perNodeConfig: [{ nodeSelector: { matchLabels: { size: 'l' } }, number: 2 }],
    };
    const groups = [group('node-agent', 'velero', { loadConcurrency })];
    const movements = [
      upload('moves', { phase: 'InProgress', node: 'n-1' }),
      upload('queued', { phase: 'Prepared', node: 'n-1' }),
    ];
    expect(waits({ groups, movements }).queued).toBe(
      'a free place on n-1: 1 of 1 are in use (loadConcurrency)',
    );
    const nodes = [node('n-1', { size: 'l' })];
    expect(waits({ groups, movements, nodes }).queued).toBe('the node-agent of n-1 to start it');
    const unknown = [{ ...group('node-agent', 'velero'), config: undefined }];
    expect(waits({ groups: unknown, movements }).queued).toBe(
      'a free place on n-1 (loadConcurrency)',
    );
  });

  it('its pod, its claim, or its snapshot', () => {
    const hosting = (name: string, status: object): Pod =>
      aPod({
        metadata: { name, labels: { 'velero.io/exposer-pod-group': 'snapshot-exposer' } },
        spec: { containers: [], nodeName: 'n-1' },
        status,
      });
    const accepted = { phase: 'Accepted', acceptedByNode: 'n-1' };
    const movements = [
      upload('early', accepted),
      upload('claimed', accepted),
      upload('pulling', accepted),
    ];
    const state = { waiting: { reason: 'ImagePullBackOff' } };
    const pods = [
      agent('node-agent', 'n-1'),
      hosting('pulling', { phase: 'Pending', containerStatuses: [{ name: 'x', state }] }),
    ];
    const claims = [{ metadata: { name: 'claimed' }, status: { phase: 'Pending' } }] as never;
    expect(waits({ movements, pods, claims })).toEqual({
      early: 'its snapshot to be ready, and a volume to be made from it',
      claimed: 'its pod, which will mount PVC claimed (Pending)',
      pulling: 'pod pulling on n-1 (ImagePullBackOff)',
    });
  });

  it('volumes of pods, which stay on the nodes of their pods', () => {
    const finalizers = ['velero.io/pod-volume-finalizer'];
    const here = { node: 'n-1' };
    const moving = { phase: 'InProgress', progress: { bytesDone: 2048, totalBytes: 4096 } };
    const movements = [
      podVolume('new', here),
      podVolume('far', { node: 'n-9' }),
      podVolume('early', here, { phase: 'Accepted' }),
      podVolume('queued', here, { phase: 'Prepared' }),
      podVolume('moves', here, { ...moving, startTimestamp: time(NOW - 10) }),
      podVolume('stops', { ...here, cancel: true }, { phase: 'Canceling' }),
      podVolume('cleaning', here, { phase: 'Completed' }, { finalizers }),
      podVolume('back', {}),
      podVolume('backAlone', {}, { phase: 'InProgress', node: 'n-9' }),
      podVolume('failed', {}, { phase: 'Failed', node: 'n-1', message: 'no luck' }),
    ];
    const far = 'the node-agent of n-9, which is not running: the node is gone';
    expect(waits({ movements })).toEqual({
      new: 'the node-agent of n-1 to accept it',
      far,
      early: 'its volume to be made available',
      queued: 'a free place on n-1: 2 of 1 are in use (loadConcurrency)',
      moves: 'its data: 2.0 KiB of 4.0 KiB',
      stops: 'its cancellation to take effect',
      cleaning: 'its finalizer: an agent is removing what was made for it',
      back: 'pod app/web-0 to wait for its data (init container restore-wait)',
      backAlone: far,
      failed: 'no luck',
    });
    const rows = new Map(describeMovements(world({ movements })).map((row) => [row.name, row]));
    expect(rows.get('moves')).toMatchObject({
      kind: 'PodVolumeBackup',
      volume: 'app/web-0/data',
      node: 'n-1',
      movingSeconds: 10,
      bytesDone: 2048,
      totalBytes: 4096,
      dataMover: 'velero',
      isOver: false,
    });
    expect(rows.get('failed')).toMatchObject({
      kind: 'PodVolumeRestore',
      node: 'n-1',
      isOver: true,
    });
    // An agent that serves another data mover only does not serve them.
    const groups = [group('longshore-node-agent', 'longshore')];
    expect(waits({ movements: [podVolume('other', here)], groups }).other).toBe(
      'the data mover "velero", which no agent here serves (longshore-node-agent serves longshore)',
    );
  });

  it('of one that is over but not cleaned up, its finalizer', () => {
    const finalizers = ['velero.io/data-upload-download-finalizer'];
    const movements = [
      upload('done', { phase: 'Completed' }),
      upload('cleaning', { phase: 'Failed', message: 'no luck' }, { metadata: { finalizers } }),
    ];
    const rows = describeMovements(world({ movements }));
    expect(rows.map(({ isOver, waitsFor }) => [isOver, waitsFor])).toEqual([
      [true, ''],
      [false, 'its finalizer: an agent is removing what was made for it'],
    ]);
  });

  it('nodes that may not be read are not called gone', () => {
    const movements = [upload('lost', { phase: 'InProgress', node: 'n-9' })];
    const of = 'the node-agent of n-9, which is not running';
    expect(waits({ movements }).lost).toBe(`${of}: the node is gone`);
    expect(waits({ movements, nodes: undefined }).lost).toBe(of);
    const broken = node('n-9');
    broken.status = { conditions: [{ type: 'Ready', status: 'Unknown' }] };
    expect(waits({ movements, nodes: [broken] }).lost).toBe(`${of}: the node is not ready`);
  });
});
