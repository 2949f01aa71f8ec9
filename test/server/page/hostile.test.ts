import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { FakeApi } from './support/fake-api.ts';
import { fill } from './support/objects.ts';
import { HIDDEN, hostileWord, structureOf } from './support/hostile.ts';
import { openPage, PATIENT } from './support/page.ts';

/** The pages of a cluster with such words in every text that users can write. */
async function pagesOf(words: readonly string[]): Promise<string[]> {
  const api = new FakeApi();
  let at = 0;
  let backup = '';
  let restore = '';
  fill(api, (plain) => {
    // Phases, times and names of kinds decide the output. These words are only shown.
    const word = `${plain.slice(0, 1)}${words[at++ % words.length] ?? ''}${at}`;
    if (plain === 'nightly-2' && backup === '') backup = word;
    if (plain === 'back-again') restore = word;
    return word;
  });
  await using page = await openPage(api);
  let body = '';
  await expect
    .poll(async () => (body = (await page.ask('/')).body), { ...PATIENT, interval: 5 })
    .toContain('claim-moving');
  const own = await page.ask(`/backups/${encodeURIComponent(backup.toWellFormed())}`);
  const restored = await page.ask(`/restores/${encodeURIComponent(restore.toWellFormed())}`);
  expect(restored.status).toBe(200);
  return [body, own.body, restored.body];
}

describe('what others have written', () => {
  it('changes nothing of a page but its texts', async () => {
    const usual = (await pagesOf(['plain'])).map(structureOf);
    const [overview = [], own = []] = usual;
    expect(overview.length).toBeGreaterThan(300);
    expect(own).toContain('section aria-labelledby');
    await fc.assert(
      fc.asyncProperty(fc.array(hostileWord, { minLength: 1, maxLength: 12 }), async (words) => {
        const bodies = await pagesOf(words);
        for (const body of bodies) expect(body).not.toMatch(HIDDEN);
        expect(bodies.map(structureOf)).toEqual(usual);
      }),
      { numRuns: 60 },
    );
  });

  it('of a query is text too', async () => {
    const api = new FakeApi();
    fill(api);
    await using page = await openPage(api);
    await expect.poll(async () => (await page.ask('/')).status, PATIENT).toBe(200);
    const evil = '"><script>alert(1)</script>';
    const query = new URLSearchParams({ prefix: evil, phase: evil, day: evil, page: evil });
    const { status, body } = await page.ask(`/?${query.toString()}`);
    expect(status).toBe(200);
    expect(body).toContain('&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;');
    expect([...body.matchAll(/<script>/g)].length).toBe(1);
    expect((await page.ask(`/backups/${encodeURIComponent(evil)}`)).body).not.toContain('alert');
  });
});
