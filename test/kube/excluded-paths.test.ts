import { describe, expect, it } from 'vitest';
import {
  annotatedExcludes,
  excludedPathsOf,
  excludesOfPodVolume,
  excludesVariable,
  type KubeObject,
  parseExcludesVariable,
} from '../../src/kube/index.ts';

const annotated = (annotations?: Record<string, string>): KubeObject =>
  ({ metadata: { name: 'x', annotations } }) as never;

describe('rules for excluded paths', () => {
  it('of a volume of a pod are those of its PVC, of all volumes, and of this one', () => {
    const pod = annotated({
      'longshore.io/exclude-paths': '.snapshot',
      'exclude-paths.longshore.io/data': '/cache',
      'exclude-paths.longshore.io/logs': '*',
    });
    const claim = annotated({ 'longshore.io/exclude-paths': 'a,b\nc' });
    expect(excludesOfPodVolume(pod, 'data', claim)).toBe('a,b\nc\n.snapshot\n/cache');
    expect(excludesOfPodVolume(pod, 'other', undefined)).toBe('.snapshot');
    expect(excludesOfPodVolume(annotated(), 'data', annotated())).toBeUndefined();
    expect(annotatedExcludes(annotated())).toEqual({});
  });

  it('come from the CR, its annotations and the agent', () => {
    const config = { 'longshore.excludePaths': 'own', ...annotatedExcludes(annotated({})) };
    expect(excludedPathsOf(config)).toEqual({ config: 'own', annotations: undefined });
    const ofPvc = annotatedExcludes(annotated({ 'longshore.io/exclude-paths': 'pvc' }));
    const agent = { annotations: 'pod', storageClass: 's', settings: 'all' };
    expect(excludedPathsOf(ofPvc, agent)).toEqual({
      ...agent,
      annotations: 'pvc\npod',
      config: undefined,
    });
  });

  it.each([
    ['quotes and lines', '"a"\n\\b\r\n'],
    ['references to variables', '$(SECRET) $$(X) ${Y}'],
    ['characters that no environment holds', '\u0000\ufffd\u{1f600}'],
  ])('reach the data mover as they are: %s', (_, annotations) => {
    const text = excludesVariable({ annotations, settings: 'é' });
    expect(text).toMatch(/^[\w%.~!*'()-]+$/);
    expect(parseExcludesVariable(text)).toEqual({ annotations, settings: 'é' });
  });

  it('of a user who writes as much as an annotation holds fit into an environment', () => {
    const long = '\u20ac'.repeat(80_000);
    const pod = annotated({ 'longshore.io/exclude-paths': long });
    const half = excludesOfPodVolume(
      pod,
      'data',
      annotated({ 'longshore.io/exclude-paths': long }),
    );
    expect(half).toHaveLength(4097);
    const most = { annotations: half, storageClass: half, settings: half };
    // Linux refuses to start a program with a longer variable.
    expect(excludesVariable(most)?.length).toBeLessThan(128 << 10);
    const surrogates = annotated({ 'longshore.io/exclude-paths': '\u{1f600}'.repeat(4000) });
    expect(() =>
      excludesVariable({ annotations: excludesOfPodVolume(surrogates, 'd', undefined) }),
    ).not.toThrow();
  });

  it('that were not said are no variable', () => {
    expect(excludesVariable({})).toBeUndefined();
    expect(parseExcludesVariable(undefined)).toEqual({});
  });
});
