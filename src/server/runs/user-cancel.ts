import type { KubeObject } from '../../kube/index.ts';
import { CANCEL_ANNOTATION } from '../../plugin/index.ts';

/** Whether a user ran `longshore backup cancel` or `longshore restore cancel`. */
export const isCanceled = ({ metadata }: Pick<KubeObject, 'metadata'>): boolean =>
  (metadata.annotations?.[CANCEL_ANNOTATION] ?? '') !== '';

/** The `failureReason` of a canceled Backup or Restore. */
export const CANCELED = 'canceled by user';
