import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { CodedError, silentLogger } from '../../../../src/base/index.ts';
import type { DataDownload, KubeClient, KubeObject } from '../../../../src/kube/index.ts';
import { isWaitNote, openActions } from '../../../../src/plugin/index.ts';
import { aDownload, aRestore } from '../../../support/builders.ts';

/** Movements that no node-agent takes up. */

const RESTORE = aRestore({
  metadata: { name: 'r1', namespace: 'velero', uid: 'u' },
  spec: {},
  status: { phase: 'InProgress' },
});
const context = { signal: new AbortController().signal };
const ID = 'dd-in-place-u.pvc';
const NOBODY = { waitsFor: 'a node-agent: there is none', isLasting: true };

class World {
  download: object = {};
  hindrance: object | undefined = NOBODY;
  /** The API server's errors for the read of agents, and for the write that ends a movement. */
  refusals: { asking?: Error; ending?: Error } = {};
  asked = 0;
  readonly patches: unknown[] = [];
  readonly told: [string, string][] = [];
  readonly action = openActions({
    client: {
      collect: (_resource: unknown, _scope: unknown, map: (found: DataDownload) => unknown[]) =>
        Promise.resolve(map(this.#found())),
      list: () => Promise.resolve([this.#found()]),
      patch: (_resource: unknown, ref: unknown, patch: unknown) => {
        if (this.refusals.ending) return Promise.reject(this.refusals.ending);
        this.patches.push({ ...(ref as object), ...(patch as object) });
        return Promise.resolve({});
      },
    } as unknown as KubeClient,
    logger: silentLogger,
    unclaimed: {
      whyUnserved: () => {
        this.asked++;
        const { asking } = this.refusals;
        return (asking ? Promise.reject(asking) : Promise.resolve(this.hindrance)) as never;
      },
      warn: ({ kind = '', metadata }: KubeObject, message) => {
        this.told.push([`${kind} ${metadata.name} ${metadata.uid}`, message]);
      },
    },
  }).pvcRestore();

  #found(): DataDownload {
    const { metadata, ...more } = this.download as { metadata?: object };
    return aDownload({
      metadata: {
        name: 'd1',
        namespace: 'velero',
        uid: 'du',
        resourceVersion: '7',
        labels: { 'velero.io/async-operation-id': ID },
        ownerReferences: [
          { apiVersion: 'velero.io/v1', kind: 'Restore', name: 'r1', uid: 'u', controller: true },
        ],
        ...metadata,
      },
      spec: { datamover: 'longshore', targetVolume: { namespace: 'a', pvc: 'p', pv: '' } },
      ...more,
    });
  }

  ask = () => this.action.progress(ID, RESTORE, context);

  /** Asked every ten seconds. */
  async askFor(seconds: number) {
    let progress = await this.ask();
    for (let at = 0; at < seconds && !progress.completed; at += 10) {
      await vi.advanceTimersByTimeAsync(10_000);
      progress = await this.ask();
    }
    return progress;
  }
}

describe('a movement that nobody takes up', () => {
  let world: World;
  beforeEach(() => {
    vi.useFakeTimers();
    world = new World();
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  it('says within seconds what it waits for, to users too, and once', async () => {
    expect((await world.ask()).description).toBe('');
    const { description, completed } = await world.askFor(20);
    expect(description).toBe('waits for a node-agent: there is none');
    expect(isWaitNote(description)).toBe(true);
    expect(completed).toBe(false);
    await world.askFor(120);
    expect(world.told).toEqual([
      ['Restore r1 u', 'DataDownload d1 waits for a node-agent: there is none'],
    ]);
    expect(world.patches).toEqual([]);
  });

  it('fails after some minutes, and is not begun afterwards', async () => {
    const progress = await world.askFor(600);
    expect(progress).toMatchObject({
      completed: true,
      err: 'no node-agent took it up, and nothing was moved: it waits for a node-agent: there is none',
    });
    expect(world.patches).toEqual([
      {
        name: 'd1',
        namespace: 'velero',
        spec: { cancel: true },
        // A movement that an agent has accepted meanwhile is not changed.
        metadata: { uid: 'du', resourceVersion: '7' },
      },
    ]);
  });

  it('fails by no single look, however long the process slept before it', async () => {
    await world.askFor(20);
    await vi.advanceTimersByTimeAsync(3_600_000);
    expect(await world.ask()).toMatchObject({ completed: false });
  });

  it('goes on where those who would take it up are only away', async () => {
    world.hindrance = { waitsFor: 'a node-agent: none is running', isLasting: false };
    expect(await world.askFor(1200)).toMatchObject({
      completed: false,
      description: 'waits for a node-agent: none is running',
    });
    world.hindrance = undefined;
    expect(await world.askFor(60)).toMatchObject({ completed: false, description: '' });
    expect(world.patches).toEqual([]);
  });

  it('counts anew where somebody was there meanwhile', async () => {
    await world.askFor(240);
    world.hindrance = undefined;
    await world.askFor(60);
    world.hindrance = NOBODY;
    expect(await world.askFor(240)).toMatchObject({ completed: false });
    expect(await world.askFor(120)).toMatchObject({ completed: true });
  });

  it.each([
    ['begun', { status: { phase: 'Accepted' } }],
    ['in line at an agent', { metadata: { finalizers: ['velero.io/x'] } }],
  ])('is left alone where it is %s', async (_, download) => {
    world.download = download;
    expect(await world.askFor(900)).toMatchObject({ completed: false });
    expect(world.asked).toBe(0);
    expect(world.told).toEqual([]);
  });

  it.each(['KUBE_CONFLICT', 'KUBE_UNAVAILABLE'])(
    'waits on where its end meets %s',
    async (code) => {
      world.refusals.ending = new CodedError(code, 'no', { retry: 'backoff' });
      expect(await world.askFor(900)).toMatchObject({ completed: false });
      world.refusals = {};
      expect(await world.askFor(120)).toMatchObject({ completed: true });
    },
  );

  it('waits on where nobody may say who is there', async () => {
    world.refusals.asking = new CodedError('KUBE_FORBIDDEN', 'no');
    expect(await world.askFor(900)).toMatchObject({ completed: false, description: '' });
    expect(world.told).toEqual([]);
  });
});
