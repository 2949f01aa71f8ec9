/**
 * A cluster without Kubernetes: an API server in this process, a simulated CSI driver whose volumes
 * are directories, nodes that run pods as processes. For the demo, `longshore dev`, and tests;
 * nothing of it is in the DaemonSet.
 */
export { ApiServer } from './api-server.ts';
export { DevCluster, LATE_STORAGE_CLASS, STORAGE_CLASS } from './dev-cluster.ts';
export { SIMULATED_DRIVER } from './simulated-csi.ts';
export { IN_PROCESS, STAND_IN } from './pod-runner.ts';
export { jsonPatch } from './patches.ts';
