-- Neurons that addition needs
-- Accuracy when each late layer keeps only the k neurons with the largest effects, or k random
-- neurons. All other late neurons take their mean.
select neurons_per_layer, avg(accuracy) as accuracy, circuit
from faithfulness
where
    subject = $subject and operator = 'add' and experiment = 'neuron_circuit'
    and circuit in ('effect', 'logit_effect', 'random')
group by neurons_per_layer, circuit
order by neurons_per_layer, circuit
