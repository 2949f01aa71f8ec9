import { z } from 'zod';
import { CodedError, define } from '../base/index.ts';

const quantity = z.string().optional();

/**
 * Resources of new pods, in the form of Velero's ConfigMaps (pkg/util/kube/pod.go: PodResources).
 */
export const POD_RESOURCES_SHAPE = {
  cpuRequest: quantity,
  cpuLimit: quantity,
  memoryRequest: quantity,
  memoryLimit: quantity,
  ephemeralStorageRequest: quantity,
  ephemeralStorageLimit: quantity,
};
type PodResourcesConfig = {
  readonly [Key in keyof typeof POD_RESOURCES_SHAPE]?: string | undefined;
};

const QUANTITY = /^\d+(?:\.\d+)?(?:[numkKMGTPE]|[KMGTPE]i|e\d+)?$/;

/**
 * Requests and limits of a pod. Missing and 0 values are not set. Velero drops all values if one of
 * the four for CPU and memory is missing. Throws `BAD_CONFIG` for an invalid quantity.
 */
export function podResourcesOf(wanted: PodResourcesConfig | null | undefined): {
  requests?: Record<string, string>;
  limits?: Record<string, string>;
} {
  const take = (
    pairs: Readonly<Record<string, keyof PodResourcesConfig>>,
  ): Record<string, string> => {
    const found: Record<string, string> = {};
    for (const [resource, key] of Object.entries(pairs)) {
      const value = wanted?.[key];
      if (value === undefined || value === '' || value === '0') continue;
      if (!QUANTITY.test(value)) {
        const text = `podResources.${key}: "${value}" is not a quantity such as 500m or 1Gi`;
        throw new CodedError('BAD_CONFIG', text);
      }
      define(found, resource, value);
    }
    return found;
  };
  const requests = take({
    cpu: 'cpuRequest',
    memory: 'memoryRequest',
    'ephemeral-storage': 'ephemeralStorageRequest',
  });
  const limits = take({
    cpu: 'cpuLimit',
    memory: 'memoryLimit',
    'ephemeral-storage': 'ephemeralStorageLimit',
  });
  return {
    ...(Object.keys(requests).length > 0 && { requests }),
    ...(Object.keys(limits).length > 0 && { limits }),
  };
}
