import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { goEscaped, goString } from '../../src/base/index.ts';
import { type KubeObject, NAMESPACES, type Resource } from '../../src/kube/index.ts';
import { hasRealApi, type RealApi, startRealApi } from '../support/real-api.ts';

const PORT = 24_600;
const REVISIONS: Resource<KubeObject> = {
  group: 'apps',
  version: 'v1',
  kind: 'ControllerRevision',
  plural: 'controllerrevisions',
  namespaced: true,
};

it('what Go escapes in strings is escaped in what any writer has made', () => {
  const value = { 'a<b': ['x && y > z', '\u2028\u2029', 'plain \\u0026 "quoted"'] };
  const escaped = goEscaped(JSON.stringify(value));
  expect(JSON.parse(escaped)).toEqual(value);
  expect(escaped).toContain(goString('x && y > z'));
  expect(escaped).not.toMatch(/[<>&\u2028\u2029]/);
});

describe.skipIf(!hasRealApi())('bytes that an API server keeps as they were sent', () => {
  let api: RealApi;
  beforeAll(async () => {
    api = await startRealApi(PORT);
  }, 120_000);
  afterAll(() => api[Symbol.asyncDispose]());

  it('do not seem to change when something else of the object does', async () => {
    const { client } = api;
    await client.create(NAMESPACES, { metadata: { name: 'app' } });
    const ref = { namespace: 'app', name: 'db-1' };
    const annotations = { 'post.hook/command': '["sh","-c","echo <a> && touch b"]' };
    await client.create(REVISIONS, {
      metadata: ref,
      data: { spec: { template: { $patch: 'replace', metadata: { annotations } } } },
      revision: 1,
    } as never);
    const patched = await client.patch(REVISIONS, ref, { metadata: { labels: { a: 'b' } } });
    expect(patched.metadata.labels).toEqual({ a: 'b' });
  });
});
