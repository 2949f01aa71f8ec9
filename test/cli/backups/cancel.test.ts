import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { BACKUPS, type KubeObject, type Resource, RESTORES } from '../../../src/kube/index.ts';
import { CANCEL_ANNOTATION } from '../../../src/plugin/index.ts';
import { Api } from './support/api.ts';

let api: Api;
beforeAll(async () => {
  api = await Api.start('cancel');
});
afterAll(() => api[Symbol.asyncDispose]());

const noteOn = async (resource: Resource<KubeObject>, name: string): Promise<string | undefined> =>
  (await api.client.get(resource, { namespace: 'velero', name })).metadata.annotations?.[
    CANCEL_ANNOTATION
  ];

describe.each([
  { word: 'restore', resource: RESTORES },
  { word: 'backup', resource: BACKUPS },
])('longshore $word cancel', ({ word, resource }) => {
  it('notes on the object that it is to end, and says where that is seen', async () => {
    await api.add(resource, 'runs', { status: { phase: 'WaitingForPluginOperations' } });
    const { code, out } = await api.longshore(word, 'cancel', 'runs');
    expect([code, out]).toEqual([
      0,
      `${word} runs is told to end; see "longshore ${word} get runs"\n`,
    ]);
    expect(await noteOn(resource, 'runs')).toBe('true');
  });

  it('with --wait returns when it has ended, and says how', async () => {
    await api.add(resource, 'ends', { status: { phase: 'InProgress' } });
    const waiting = api.longshore(word, 'cancel', 'ends', '--wait');
    await expect.poll(() => noteOn(resource, 'ends'), { timeout: 20_000 }).toBe('true');
    await api.set(resource, 'ends', { phase: 'Failed' });
    expect(await waiting).toMatchObject({ code: 0, out: `${word} ends has ended: Failed\n` });
  });

  it('leaves one alone that is over, and says so; and says where there is none', async () => {
    await api.add(resource, 'over', { status: { phase: 'Completed' } });
    const over = await api.longshore(word, 'cancel', 'over');
    expect(over.err).toContain(`${word} over has ended already: Completed`);
    expect(over.code).toBe(1);
    expect(await noteOn(resource, 'over')).toBeUndefined();
    const none = await api.longshore(word, 'cancel', 'none');
    expect(none.err).toContain(`"longshore ${word} get" lists those that there are`);
    expect(none.code).toBe(1);
  });
});
